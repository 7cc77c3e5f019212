// SPDX-License-Identifier: Apache-2.0
#include "share/borrower/peer.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "core/point.h"
#include "device/pinned_ranges.h"
#include "os/deadline_scope.h"
#include "os/log.h"

namespace onecopy {
Peer::Peer(const ProcessId& owner, std::string name, UnixSocket socket, int pid, ProcessWatch watch)
    : process_(owner, std::move(name), pid, std::move(watch)), broker_(std::move(socket), pid) {
  broker_.on_unsolicited = [this](Packet packet) { handle_unsolicited(std::move(packet)); };
}

std::shared_ptr<Peer> Peer::make(Peer* made) {
  std::shared_ptr<Peer> peer(made);
  peer->blocks_.whole = peer;
  return peer;
}

std::shared_ptr<Peer> Peer::begin_handshake(Dial call, std::optional<SegmentRequest> wanted) {
  ProcessWatch watch(call.credentials.pid, call.socket.peer_pidfd());
  std::shared_ptr<Peer> peer = make(new Peer(call.to, std::move(call.name), std::move(call.socket),
                                             call.credentials.pid, std::move(watch)));
  peer->wanted_ = wanted;
  peer->prove(call.greeting);
  return peer;
}

std::shared_ptr<Peer> Peer::frozen(const ProcessId& owner, std::string name, Fd table) {
  std::shared_ptr<Peer> peer = make(new Peer(owner, std::move(name)));
  peer->process_.set_gone();
  peer->blocks_.leases().set_frozen_table(table);
  return peer;
}

void Peer::set_table(Fd file) {
  blocks_.leases().set_table(file);
  process_.set_table(std::move(file));
}

void Peer::watch(EventLoop& loop, Timer& looks, SegmentRetention& retention) {
  loop_ = &loop;
  looks_ = &looks;
  retention_ = &retention;
  blocks_.on_release = [&looks] { looks.request(); };
  broker_.on_end = [&looks] { looks.request(); };
  broker_.watch(loop);
  if (is_gone()) return;
  process_.watch(loop, [this, &looks] {
    is_end_due_ = !end();
    if (is_end_due_) looks.request();
  });
}

BlockRef Peer::claim(std::uint32_t block, std::uint64_t generation) {
  std::optional<Error> silence;
  BlockRef claimed = blocks_.try_claim(block, generation,
                                       [&]() noexcept { return ask_owner(block, generation, silence); });
  if (!claimed && silence) throw Error(*silence);
  return claimed;
}

/// Asks the owner about a block that it has freed while another borrower passes the block on. Returns whether the block
/// is kept. If the owner does not answer, which is not a refusal, sets `silence`.
bool Peer::ask_owner(std::uint32_t block, std::uint64_t generation,
                     std::optional<Error>& silence) noexcept {
  try {
    if (!broker_.is_over()) {
      const Packet packet =
          broker_.request(wire::pack(wire::AskLimbo{generation, block}), wire::Type::limbo);
      return wire::unpack<wire::Limbo>(packet.bytes).yes;
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
  if (wait_until_frozen()) return true;
  silence = Error(ErrorCode::timeout,
                  fmt::format("process {}, which holds this memory, has closed the connection and lives; "
                              "it may be short of descriptors, try again",
                              process_.pid()));
  return false;
}

bool Peer::is_out_of_reach() const noexcept {
  const auto since = unanswered_since_.load();
  return since != std::chrono::steady_clock::time_point{} &&
         std::chrono::steady_clock::now() - since >= kDeathTakesAtMost;
}

bool Peer::wait_until_frozen() noexcept {
  constexpr std::chrono::milliseconds kLongestPause{20};
  const auto is_frozen = [this] { return process_.has_ended() || (!uses_devices() && has_left()); };
  const auto deadline = std::chrono::steady_clock::now() +
                        std::min<std::chrono::milliseconds>(kDeathTakesAtMost, reply_timeout());
  for (std::chrono::milliseconds pause{1}; !is_frozen(); pause = std::min(2 * pause, kLongestPause)) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(pause);
  }
  return true;
}

/// Returns whether memory of a device is mapped here or streams use the peer's words; also true while a thread asks for
/// the words.
bool Peer::uses_devices() noexcept {
  if (!timeline_mutex_.try_lock()) return true;
  const LockGuard lock(timeline_mutex_, std::adopt_lock);
  return timeline_ || blocks_.segments().uses_devices();
}

bool Peer::has_left() const noexcept {
  return is_gone() || process_.has_ended() || (broker_.is_over() && process_.has_lost_mark());
}

/// An exec closes the sockets and unmaps all memory at almost the same time, so a few looks detect it. A process that
/// hung up and lives on is looked at again only when the importer looks for another reason, at most once a second.
bool Peer::poll_hangup() {
  constexpr std::chrono::seconds kPause{1};
  const auto now = std::chrono::steady_clock::now();
  if (is_gone()) return false;
  if (is_end_due_) return !end();
  if (!broker_.is_over() || now < next_look_) return false;
  if (!uses_devices() && has_left()) return !end();
  if (first_looks_ != 0) return first_looks_-- != 0;
  next_look_ = now + kPause;
  return false;
}

/// Ends the connection to a process that is gone. Returns false while another thread asks a question, which fails soon:
/// the caller must try again.
bool Peer::end() {
  HazardGuard::prepare();  // now, because close() runs with locks held
  if (!broker_.try_end()) return false;
  process_.stop_watching();
  process_.set_gone();
  for (const std::uint32_t segment : blocks_.segments().weak())
    log_warning(
        "process {} has ended, and its segment {} was of its device's own allocator: tensors from that "
        "segment are invalid now; memory of onecopy, and a module shared as a whole, outlive their process",
        process_.pid(), segment);
  {
    const LockGuard lock(timeline_mutex_);
    // After this, streams of this process write no more words for the peer.
    if (timeline_) timeline_->end();
    look_at_words();
  }
  looks_->request();
  return true;
}

/// Returns whether streams of this process wait for the peer's words.
bool Peer::look_at_words() {
  const auto awaited = timeline_ ? timeline_->poll() : ForeignTimeline::WaitState::nothing;
  if (awaited == ForeignTimeline::WaitState::never) {
    const std::string why = timeline_->failure();
    log_warning(
        "{} before its streams had written data that streams of this process wait for; those go on without "
        "it",
        why.empty() ? fmt::format("process {} ended", process_.pid())
                    : fmt::format("a device of process {} failed with {}", process_.pid(), why));
  }
  return awaited != ForeignTimeline::WaitState::nothing;
}

bool Peer::poll_waits() {
  if (!timeline_mutex_.try_lock()) return true;  // a thread is asking the peer for its words
  const LockGuard lock(timeline_mutex_, std::adopt_lock);
  return look_at_words();
}

/// Keeps the descriptor of a process that runs another program now: its device may still be at work.
void Peer::close_descriptors() noexcept {
  broker_.close();
  process_.close_table();
  if (process_.has_ended()) process_.forget();
}

bool Peer::try_close() noexcept {
  if (!is_closed()) {
    if (!is_gone()) return false;
    close_descriptors();
    if (!blocks_.leases().try_freeze() || !blocks_.leases().try_close()) return false;
    blocks_.segments().close();
    PinnedRanges::segment_ended();
  }
  return blocks_.leases().try_forget();
}

void Peer::leave_when_unused() noexcept {
  is_leaving_ = true;
  process_.report_releases();
}

/// Counts around the attempt, during which a claim may fail although the peer stays open. An owner whose socket has no
/// room for the message sees a page without claims until this process ends.
bool Peer::try_leave() noexcept {
  if (!is_leaving_ || is_gone() || broker_.is_over() || uses_devices() || blocks_.segments().is_held())
    return false;
  ++attempts_;
  const bool is_unused = blocks_.leases().try_close();
  ++attempts_;
  if (is_unused) broker_.notify(wire::Detach{});
  point("peer.left");
  return is_unused;
}

bool Peer::try_finish_leaving() noexcept {
  if (!broker_.is_closed()) {
    if (!broker_.try_end()) return false;
    process_.stop_watching();
    broker_.close();
    process_.close_table();
    process_.forget();
    blocks_.segments().close();
    PinnedRanges::segment_ended();
  }
  return blocks_.leases().try_forget();
}

/// Looks for readers of the leases last, because a claimer goes on from the peer to the leases.
bool Peer::is_destroyable() noexcept {
  const LockGuard lock(timeline_mutex_);
  return !timeline_ && HazardGuard::readers_of(this) == HazardGuard::Readers::none &&
         blocks_.leases().has_no_readers();
}

void Peer::lock() {
  timeline_mutex_.lock();
  broker_.lock();
  blocks_.segments().lock();
  process_.lock();
  if (timeline_) timeline_->lock();
}

void Peer::unlock() {
  if (timeline_) timeline_->unlock();
  process_.unlock();
  blocks_.segments().unlock();
  broker_.unlock();
  timeline_mutex_.unlock();
}

void Peer::prepare_fork() {
  if (is_closed() || is_gone()) return;
  if (broker_.is_over())  // the owner may live; without the child's page it counts all our blocks as held
    announce_child(blocks_.leases().page());
  else fork_page_ = send_child_page(blocks_.leases().page(), broker_.socket());
}

void Peer::finish_fork_in_child() noexcept {
  if (is_closed()) return;  // closed before the fork, because the importer has been locked since
  // The page is empty if the owner is gone or counts this process with its parent.
  ForkPage mine = std::exchange(fork_page_, {}).value_or(ForkPage{});
  blocks_.leases().go_on_in_child(std::move(mine.memory));
  broker_.go_on_in_child(std::move(mine.socket));
  if (timeline_) timeline_->forget_awaited();
}

}  // namespace onecopy
