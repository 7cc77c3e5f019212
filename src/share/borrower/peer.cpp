// SPDX-License-Identifier: Apache-2.0
#include "share/borrower/peer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "device/pinned_ranges.h"
#include "onecopy/core/error.h"
#include "os/log.h"
#include "os/process.h"
#include "os/program_mark.h"
#include "share/format/process_name.h"
#include "share/owner/late_releases.h"
#include "share/owner/segment_pins.h"

namespace onecopy {
namespace {

[[noreturn]] void throw_weak(int pid, std::uint32_t segment) {
  throw Error(
      ErrorCode::owner_died,
      fmt::format("process {}, which allocated segment {} with its device's own allocator, has ended, and "
                  "such memory ends with its process; allocate with onecopy what must outlive it",
                  pid, segment));
}

}  // namespace

Peer::Peer(const ProcessId& owner, UnixSocket socket, int pid)
    : owner_(owner), name_(public_name(owner)), pid_(pid), client_(std::move(socket), pid) {
  client_.on_news = [this](Packet packet) { take_news(std::move(packet)); };
}

std::shared_ptr<Peer> Peer::begin_handshake(Dial call, const std::string& my_name,
                                            std::optional<SegmentRequest> wanted) {
  Fd pidfd = call.socket.peer_pidfd();
  std::shared_ptr<Peer> peer(new Peer(call.to, std::move(call.socket), call.credentials.pid));
  peer->pidfd_ = std::move(pidfd);
  peer->wanted_ = wanted;
  peer->prove(call.nonce, my_name);
  return peer;
}

std::shared_ptr<Peer> Peer::frozen(const ProcessId& owner, Fd table) {
  std::shared_ptr<Peer> peer(new Peer(owner));
  peer->gone_ = true;
  peer->set_table(std::move(table));
  peer->leases_.set_page(private_claims());
  return peer;
}

void Peer::set_table(Fd file) {
  leases_.set_table(file);
  table_inode_ = inode_of(file);
  table_file_ = std::move(file);
}

void Peer::watch(EventLoop& loop, Timer& looks, SegmentRetention& retention) {
  loop_ = &loop;
  looks_ = &looks;
  retention_ = &retention;
  client_.on_end = [&looks] { looks.request(); };
  client_.watch(loop);
  if (!gone_) loop.add(pidfd_.get(), [this] { end(); });
}

/// Reading /proc takes up to a fifth of a connection's time, so it is read late. A value read while the process lived
/// is its own, and not that of a later process with its number.
ProcessOrigin Peer::origin() const {
  if (const std::uint64_t known = start_time_) return {pid_, known};
  errno = 0;
  const std::uint64_t start_time = process_start_time(pid_);
  const int error = errno;
  if (has_ended()) return {pid_, 0};
  if (start_time == 0) throw_errno("cannot read /proc for when the owner of this memory started", error);
  start_time_ = start_time;
  return {pid_, start_time};
}

BlockRef Peer::try_claim(std::uint32_t block, std::uint64_t generation) noexcept {
  if (!leases_.try_claim(block, generation, [] { return false; })) return {};
  return {this, block};
}

BlockRef Peer::claim(std::uint32_t block, std::uint64_t generation) {
  std::optional<Error> silence;
  if (leases_.try_claim(block, generation, [&] { return ask_owner(block, generation, silence); }))
    return {this, block};
  if (silence) throw Error(*silence);
  return {};
}

/// Slow, and only for blocks that the owner has freed while another borrower passes them on. If the owner does not
/// answer, that is no refusal: `error` is set, too.
bool Peer::ask_owner(std::uint32_t block, std::uint64_t generation,
                     std::optional<Error>& silence) noexcept {
  try {
    if (!is_disconnected()) {
      const Packet packet =
          client_.request(wire::pack(wire::AskLimbo{generation, block}), wire::Type::limbo);
      return wire::body_of<wire::Limbo>(packet.bytes).yes != 0;
    }
  } catch (const Error& e) {
    if (e.code() == ErrorCode::timeout) {
      silence = e;
      return false;
    }
    if (e.code() != ErrorCode::peer_died) {
      log_warning("the owner did not say whether block {} is still held: {}", block, e.what());
      return false;
    }
  }
  auto never = std::chrono::steady_clock::time_point{};
  unanswered_since_.compare_exchange_strong(never, std::chrono::steady_clock::now());
  if (wait_gone()) return true;
  silence = Error(
      ErrorCode::timeout,
      fmt::format("process {}, which holds this memory, has closed the connection and lives; it may be "
                  "short of descriptors, try again",
                  pid_));
  return false;
}

bool Peer::is_out_of_reach() const noexcept {
  const auto since = unanswered_since_.load();
  return since != std::chrono::steady_clock::time_point{} &&
         std::chrono::steady_clock::now() - since >= kDeathTakesAtMost;
}

bool Peer::wait_gone() const noexcept {
  constexpr std::chrono::milliseconds kLongestPause{20};
  const auto deadline = std::chrono::steady_clock::now() +
                        std::min<std::chrono::milliseconds>(kDeathTakesAtMost, reply_timeout());
  for (std::chrono::milliseconds pause{1}; !is_frozen(); pause = std::min(2 * pause, kLongestPause)) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(pause);
  }
  return true;
}

bool Peer::is_frozen() const noexcept { return has_ended() || (!uses_devices() && has_left()); }

/// Also true while it is being asked for its words.
bool Peer::uses_devices() const noexcept {
  if (!timeline_mutex_.try_lock()) return true;
  const LockGuard lock(timeline_mutex_, std::adopt_lock);
  return timeline_ || segments_.uses_devices();
}

/// A dead owner reuses nothing, so it need not see the pin.
void Peer::begin_pin(std::uint32_t segment) {
  if (!leases_.is_seen() && !has_ended()) throw_no_pins();
  leases_.note_pin(segment);
  try {
    wait_for_hole(leases_.holes(segment), [this] { return has_ended(); });
  } catch (...) {
    leases_.end_pin(segment);
    throw;
  }
}

void Peer::release(std::uint32_t block) noexcept {
  if (LateReleases* const late = LateReleases::active()) [[unlikely]]
    if (late->keep(*this, block, bytes_of(block, Access::read_write))) return;
  release_now(block);
}

void Peer::release_now(std::uint32_t block) noexcept {
  leases_.release(block, [this]() noexcept {
    if (gone_ && looks_) looks_->request();  // perhaps it was the last one
  });
}

Peer::Location Peer::locate(const ClaimRequest& handle, Access access, std::optional<Device> user) {
  const Record& r = leases_.record(handle.block);
  if (r.segment != handle.segment || handle.storage_size > r.size)
    throw Error(ErrorCode::bad_handle,
                fmt::format("the handle says segment {} with {} bytes, its owner's table says segment "
                            "{} with {} bytes",
                            handle.segment, handle.storage_size, r.segment, r.size));
  const SegmentPlace place = segments_.find(r.segment, access);
  if (!place) return {};
  if (gone_ && is_weak(place.kind)) throw_weak(pid_, r.segment);
  if (place.kind != handle.kind || place.size != handle.segment_size)
    throw Error(ErrorCode::bad_handle,
                fmt::format("the handle says that segment {} is of kind {} and has {} bytes; it is of kind "
                            "{} and has {} bytes",
                            r.segment, static_cast<int>(handle.kind), handle.segment_size,
                            static_cast<int>(place.kind), place.size));
  if (r.offset > place.size || r.size > place.size - r.offset)
    throw Error(ErrorCode::protocol, "the owner's table names memory outside of its segment");
  const int ordinal = user.value_or(place.identity->device).index;
  std::byte* const begin = ordinal == place.user ? place.data : segments_.allow(r.segment, access, ordinal);
  return {begin + r.offset, place.identity};
}

bool Peer::has_ended() const noexcept {
  const LockGuard lock(ending_mutex_);
  return !pidfd_ || has_exited(pidfd_);
}

bool Peer::has_left() const noexcept {
  if (gone_ || has_ended()) return true;
  if (!is_disconnected()) return false;
  const LockGuard lock(ending_mutex_);
  return table_file_ && !may_be_marked(table_file_, table_inode_);
}

Fd Peer::export_table() const {
  const LockGuard lock(ending_mutex_);
  return table_file_.duplicate();
}

std::span<std::byte> Peer::bytes_of(std::uint32_t block, Access access) {
  const Record& r = leases_.record(block);
  return {segments_.find_any(r.segment, access).data + r.offset, r.size};
}

ExportedBlock Peer::export_block(std::uint32_t block, Access access) {
  const Record& r = leases_.record(block);
  const SegmentPlace place = segments_.find_any(r.segment, access);
  if (gone_ && is_weak(place.kind)) throw_weak(pid_, r.segment);
  return {{block, held_generation(r.word.load()), r.segment, r.offset, r.size},
          place.kind,
          place.size,
          place.data + r.offset,
          place.identity};
}

std::byte* Peer::allow(std::uint32_t block, Access access, int ordinal) {
  const Record& r = leases_.record(block);
  std::byte* const segment = segments_.allow(r.segment, access, ordinal);
  return segment ? segment + r.offset : nullptr;
}

/// An exec closes the sockets and unmaps everything at almost the same time, so a few looks see it. A process that
/// hung up and lives on is looked at again when the importer looks for another reason, once a second at most.
bool Peer::poll_hangup() {
  constexpr std::chrono::seconds kPause{1};
  const auto now = std::chrono::steady_clock::now();
  if (gone_ || !is_disconnected() || now < next_look_) return false;
  if (!uses_devices() && has_left()) return !end();
  if (first_looks_ != 0) return first_looks_-- != 0;
  next_look_ = now + kPause;
  return false;
}

/// Returns false while another thread asks it a question, which ends now: call again.
bool Peer::end() {
  HazardGuard::prepare();  // for when it is closed, with locks held
  if (!client_.try_end()) return false;
  loop_->remove(pidfd_.get());
  gone_ = true;
  report_weak_segments();
  {
    const LockGuard lock(timeline_mutex_);
    if (timeline_) timeline_->end();  // this process's streams write nothing for it any more
    look_at_words();
  }
  looks_->request();
  return true;
}

/// True while streams of ours wait for its words.
bool Peer::look_at_words() {
  const auto awaited = timeline_ ? timeline_->look() : ForeignTimeline::WaitState::nothing;
  if (awaited == ForeignTimeline::WaitState::never) {
    const std::string why = timeline_->failure();
    log_warning(
        "{} before its streams had written data that streams of this process wait for; those go on "
        "without it",
        why.empty() ? fmt::format("process {} ended", pid_)
                    : fmt::format("a device of process {} failed with {}", pid_, why));
  }
  return awaited != ForeignTimeline::WaitState::nothing;
}

bool Peer::poll_waits() {
  if (!timeline_mutex_.try_lock()) return true;  // it is being asked for its words
  const LockGuard lock(timeline_mutex_, std::adopt_lock);
  return look_at_words();
}

/// Logged, because tensors in weak segments fail from here on.
void Peer::report_weak_segments() const {
  for (const std::uint32_t segment : segments_.weak())
    log_warning("process {} has ended; tensors opened from its segment {} are invalid now", pid_, segment);
}

bool Peer::try_close() noexcept {
  if (!is_closed()) {
    if (!gone_ || !leases_.try_close()) return false;
    segments_.close();
    PinnedRanges::segment_ended();
    client_.close();
    const LockGuard lock(ending_mutex_);
    table_file_.reset();
  }
  return leases_.try_forget();
}

bool Peer::can_go() noexcept {
  const LockGuard lock(timeline_mutex_);
  return !timeline_ && leases_.has_no_readers();
}

void Peer::forget_process() noexcept {
  const LockGuard lock(ending_mutex_);
  pidfd_.reset();
}

void Peer::lock() {
  timeline_mutex_.lock();
  client_.lock();
  segments_.lock();
  ending_mutex_.lock();
  if (timeline_) timeline_->lock();
}

void Peer::unlock() {
  if (timeline_) timeline_->unlock();
  ending_mutex_.unlock();
  segments_.unlock();
  client_.unlock();
  timeline_mutex_.unlock();
}

void Peer::prepare_fork() {
  if (is_closed() || gone_) return;
  if (is_disconnected())  // it may live: without the child's page it counts all blocks of ours as held
    announce_child(leases_.page());
  else fork_page_ = send_child_page(leases_.page(), client_.socket());
}

void Peer::finish_fork_in_parent() noexcept { fork_page_.reset(); }

void Peer::finish_fork_in_child() noexcept {
  if (is_closed()) return;  // before the fork: the importer has been locked
  // Empty if the owner is gone, or counts us with our parent.
  ForkPage mine = std::exchange(fork_page_, {}).value_or(ForkPage{});
  leases_.go_on_in_child(std::move(mine.memory));
  client_.go_on_in_child(std::move(mine.socket));
  if (timeline_) timeline_->forget_awaited();
}

}  // namespace onecopy
