// SPDX-License-Identifier: Apache-2.0
#include "share/peer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "onecopy/core/error.h"
#include "onecopy/os/log.h"
#include "onecopy/os/memfd.h"
#include "onecopy/os/process.h"
#include "share/process_name.h"

namespace onecopy {
namespace {

[[noreturn]] void throw_silent(int pid, const Error& timeout) {
  throw Error(ErrorCode::timeout,
              fmt::format("process {}, which holds this memory, did not answer: {}; it may be stopped "
                          "(SIGSTOP, a debugger) or short of CPU, open the handle again once it runs",
                          pid, timeout.what()));
}

[[noreturn]] void throw_weak(int pid, std::uint32_t segment) {
  throw Error(
      ErrorCode::owner_died,
      fmt::format("process {}, which allocated segment {} with its device's own allocator, has ended, and "
                  "such memory ends with its process; allocate with onecopy what must outlive it",
                  pid, segment));
}

Bytes want_segment(const Peer::Wanted& wanted) {
  return wire::pack(wire::Type::want_segment,
                    wire::WantSegment{wanted.segment, wanted.access == Access::read_only, wanted.number});
}

}  // namespace

Peer::Peer(const ProcessId& owner)
    : owner_(owner),
      name_(public_name(owner)),
      count_memory_(Mapping::anonymous(kMaxBlocks * sizeof(std::atomic<std::uint32_t>))),
      counts_(count_memory_.as<std::atomic<std::uint32_t>>()) {}

template <class F>
void Peer::or_say_silent(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    if (e.code() == ErrorCode::timeout) throw_silent(pid_, e);
    throw;
  }
}

std::unique_ptr<Peer> Peer::introduce(Call call, const std::string& my_name, std::optional<Wanted> wanted) {
  std::unique_ptr<Peer> peer(new Peer(call.to));
  peer->socket_ = std::move(call.socket);
  peer->pid_ = call.credentials.pid;
  peer->pidfd_ = peer->socket_.peer_pidfd();
  peer->wanted_ = wanted;
  peer->or_say_silent([&] { peer->prove(call.nonce, my_name); });
  return peer;
}

void Peer::await_welcome() {
  or_say_silent([this] { hear_welcome(); });
}

std::unique_ptr<Peer> Peer::frozen(const ProcessId& owner, Fd table) {
  std::unique_ptr<Peer> peer(new Peer(owner));
  peer->disconnected_ = true;
  peer->gone_ = true;
  peer->set_table(std::move(table));
  peer->set_page(private_claims());
  return peer;
}

void Peer::prove(const wire::Nonce& mine, const std::string& my_name) {
  const ByteSpan secret = std::as_bytes(std::span(owner_));
  const Packet packet = receive_soon();
  wire::expect(packet.bytes, wire::Type::challenge);
  const auto challenge = wire::body_of<wire::Challenge>(packet.bytes);
  const Digest expected = wire::prove(secret, "broker", challenge.nonce, mine);
  if (!equal_in_constant_time(std::as_bytes(std::span(challenge.proof)),
                              std::as_bytes(std::span(expected))))
    throw Error(ErrorCode::bad_secret,
                "another process listens in the place of this handle's owner and does not know its "
                "secret; the handle was not used");
  const wire::Prove proof{wire::prove(secret, "borrower", mine, challenge.nonce), wire::to_name(my_name)};
  socket_.send(wire::pack(wire::Type::prove, proof), {}, broker_patience());
  if (!wanted_) return;
  Bytes question = want_segment(*wanted_);  // asked before the welcome has come: it saves a round trip
  wire::set_serial(question, ++last_serial_);
  socket_.send(question, {}, broker_patience());
}

void Peer::hear_welcome() {
  Packet packet = receive_soon();
  wire::expect(packet.bytes, wire::Type::welcome);
  if (packet.fds.size() != 2) throw Error(ErrorCode::protocol, "a welcome without its descriptors");
  set_table(std::move(packet.fds[0]));
  set_page(map_claims(packet.fds[1]));
  if (!wanted_) return;
  packet = receive_answer();
  // Refused: whoever claims the block will find out why.
  if (wire::type_of(packet.bytes) == wire::Type::segment)
    map_segment(wanted_->segment, wanted_->access, wire::memory_in<wire::Segment>(std::move(packet), 0));
}

void Peer::set_table(Fd file) {
  if (file_size(file) != kTableBytes || (seals_of(file) & kSealShrink) == 0)
    throw Error(ErrorCode::protocol, "a block table of the wrong size, or not sealed against shrinking");
  table_ = Mapping::of(file, kTableBytes, Access::read_only);
  table_file_ = std::move(file);
  records_ = table_.as<const Record>();
}

void Peer::set_page(Mapping page) {
  page_ = claims_in(page);
  transits_ = transits_in(page);
  page_memory_ = std::move(page);
}

void Peer::watch(Watch& watch, Deposits& deposits) {
  watch_ = &watch;
  deposits_ = &deposits;
  if (!disconnected_)
    watch.add(
        socket_.fd(), [this] { on_readable(); }, true);
  if (!gone_) watch.add(pidfd_.get(), [this] { check_gone(); });
}

/// Reading /proc takes as long as a fifth of a connection. What was read while it lived is its own, and not of a
/// later process with its number.
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
  return claim(block, generation, [] { return false; });
}

BlockRef Peer::claim(std::uint32_t block, std::uint64_t generation) {
  std::optional<Error> silence;
  BlockRef ref = claim(block, generation, [&] { return ask_owner(block, generation, silence); });
  if (!ref && silence) throw Error(*silence);
  return ref;
}

/// Slow, and only for blocks that the owner has let go of while another borrower passes them on. An owner that does
/// not answer has not said no: then the error is there, too.
bool Peer::ask_owner(std::uint32_t block, std::uint64_t generation,
                     std::optional<Error>& silence) noexcept {
  try {
    if (!disconnected_) {
      const Packet packet = request(wire::pack(wire::Type::ask_limbo, wire::AskLimbo{generation, block}),
                                    {}, wire::Type::limbo);
      return wire::body_of<wire::Limbo>(packet.bytes).yes != 0;
    }
  } catch (const Error& e) {
    if (e.code() == ErrorCode::timeout) {
      silence = e;
      return false;
    }
    if (e.code() != ErrorCode::peer_died) {
      log_warning(fmt::format("the owner did not say whether block {} is still held: {}", block, e.what()));
      return false;
    }
  }
  if (wait_gone()) return true;
  silence = Error(
      ErrorCode::timeout,
      fmt::format("process {}, which holds this memory, has closed the connection and lives; it may be "
                  "short of descriptors, try again",
                  pid_));
  return false;
}

bool Peer::wait_gone() const noexcept {
  const auto deadline = std::chrono::steady_clock::now() +
                        std::min<std::chrono::milliseconds>(kDeathTakesAtMost, broker_patience());
  while (!gone_ && !has_exited(pidfd_)) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

template <class Ask>
BlockRef Peer::claim(std::uint32_t block, std::uint64_t generation, Ask&& ask) noexcept {
  if (block >= kMaxBlocks) return {};
  std::uint32_t highest = highest_block_.load(std::memory_order_relaxed);
  while (highest < block && !highest_block_.compare_exchange_weak(highest, block)) {
  }
  if (!onecopy::try_claim(page_, record(block), block, generation, ask)) return {};
  if (closed_) {  // read after the slot was raised: try_close() does it the other way round
    release_claim(page_, record(block), block);
    return {};
  }
  counts_[block].fetch_add(1, std::memory_order_relaxed);
  return {this, block};
}

void Peer::retain(std::uint32_t block) noexcept {
  page_.slot(block).fetch_add(1);
  counts_[block].fetch_add(1, std::memory_order_relaxed);
}

void Peer::release(std::uint32_t block) noexcept {
  counts_[block].fetch_sub(1, std::memory_order_relaxed);
  release_claim(page_, record(block), block);
  if (gone_ && watch_) watch_->request_tick();  // perhaps it was the last one
}

std::uint64_t Peer::leases() const noexcept {
  std::uint64_t sum = 0;
  for (std::uint32_t block = 0; block <= highest_block_; ++block)
    sum += counts_[block].load(std::memory_order_relaxed);
  return sum;
}

bool Peer::is_leased() const noexcept {
  for (std::uint32_t block = 0; block <= highest_block_; ++block)
    if (page_.slot(block).load() != 0) return true;
  return false;
}

Peer::Location Peer::locate(const Said& handle, Access access) {
  const Record& r = record(handle.block);
  if (r.segment != handle.segment || handle.storage_size > r.size)
    throw Error(ErrorCode::bad_handle,
                fmt::format("the handle says segment {} with {} bytes, its owner's table says segment "
                            "{} with {} bytes",
                            handle.segment, handle.storage_size, r.segment, r.size));
  SegmentPlace place;
  if (!find_place(r.segment, access, place)) return {};
  if (gone_ && is_weak(place.kind)) throw_weak(pid_, r.segment);
  if (place.kind != handle.kind || place.size != handle.segment_size)
    throw Error(ErrorCode::bad_handle,
                fmt::format("the handle says that segment {} is of kind {} and has {} bytes; it is of kind "
                            "{} and has {} bytes",
                            r.segment, static_cast<int>(handle.kind), handle.segment_size,
                            static_cast<int>(place.kind), place.size));
  if (r.offset > place.size || r.size > place.size - r.offset)
    throw Error(ErrorCode::protocol, "the owner's table names memory outside of its segment");
  return {place.data + r.offset, place.identity};
}

bool Peer::find_place(std::uint32_t segment, Access access, SegmentPlace& place) {
  if (places_.find(segment, access, place)) return true;
  std::lock_guard lock(segments_mutex_);
  const Mapped* mapped = find_segment(segment, access);
  if (!mapped) return false;
  place = {mapped->memory->data(), mapped->memory->size(), mapped->memory->kind(), mapped->identity};
  places_.remember(segment, access, place);
  return true;
}

const Peer::Mapped* Peer::find_segment(std::uint32_t segment, Access access) const noexcept {
  const Segments& known = segments_[static_cast<std::size_t>(access)];
  return segment < known.size() && known[segment].memory ? &known[segment] : nullptr;
}

bool Peer::has_segment(std::uint32_t segment, Access access) const {
  std::lock_guard lock(segments_mutex_);
  return find_segment(segment, access) != nullptr;
}

ExportedMemory Peer::fetch_memory(const Wanted& wanted) {
  return wire::memory_in<wire::Segment>(request(want_segment(wanted), {}, wire::Type::segment), 0);
}

void Peer::fetch_segment(const Wanted& wanted) {
  map_segment(wanted.segment, wanted.access, fetch_memory(wanted));
}

void Peer::map_segment(std::uint32_t segment, Access access, ExportedMemory memory) {
  const DeviceIdentity& identity = identity_of(find_device(device_type(memory.kind), memory.device));
  const Device on = identity.device;
  std::unique_ptr<DeviceMemory> mapped = backend(on.type).open(on.index, std::move(memory), access);
  point("open.mapped");
  std::lock_guard lock(segments_mutex_);
  Segments& known = segments_[static_cast<std::size_t>(access)];
  if (segment >= known.size()) known.resize(segment + 1);
  if (!known[segment].memory)  // another thread may have been faster
    known[segment] = {std::move(mapped), &identity};
}

Peer::Foreign Peer::fetch_foreign(const std::string& owner_name, const Wanted& wanted) {
  const wire::WantForeign body{wire::to_name(owner_name), wanted.segment,
                               wanted.access == Access::read_only, wanted.number};
  Packet packet = request(wire::pack(wire::Type::want_foreign, body), {}, wire::Type::segment);
  const auto answer = wire::body_of<wire::Segment>(packet.bytes);
  if (!answer.has_table || packet.fds.empty())
    throw Error(ErrorCode::protocol, "a foreign segment came without its block table");
  Fd table = std::move(packet.fds[0]);
  return {std::move(table), wire::memory_in<wire::Segment>(std::move(packet), 1), answer.owner_gone != 0};
}

void Peer::deposit(const DepositKey& key, const ProcessOrigin& origin, const Fd& table,
                   const ExportedMemory& memory, std::uint64_t channel) {
  const wire::Deposit body{wire::to_name(key.first),
                           origin.pid,
                           origin.start_time,
                           memory.size,
                           channel,
                           key.second,
                           static_cast<std::uint8_t>(memory.kind),
                           memory.device};
  request(wire::pack(wire::Type::deposit, body, memory.blob), wire::descriptors(memory, table),
          wire::Type::deposited);
}

bool Peer::has_ended() const noexcept {
  if (gone_) return true;
  const std::lock_guard lock(ending_mutex_);
  return !pidfd_ || has_exited(pidfd_);
}

ForeignTimeline& Peer::timeline() {
  const std::lock_guard lock(timeline_mutex_);
  if (timeline_) return *timeline_;
  const Packet packet =
      request(wire::pack(wire::Type::want_timeline, wire::WantInfo{}), {}, wire::Type::timeline);
  if (packet.fds.size() != 1) throw Error(ErrorCode::protocol, "a timeline without its descriptor");
  timeline_ = std::make_unique<ForeignTimeline>(packet.fds[0], [this] { return has_ended(); });
  if (gone_) timeline_->end();
  return *timeline_;
}

void Peer::join_channel(std::uint64_t channel, std::uint8_t role) {
  request(wire::pack(wire::Type::join_channel, wire::JoinChannel{channel, role}), {}, wire::Type::joined);
}

void Peer::leave_channel(std::uint64_t channel, std::uint8_t role) noexcept {
  tell(wire::Type::leave_channel, wire::JoinChannel{channel, role});
}

bool Peer::acknowledge(std::uint64_t hold) noexcept {
  return tell(wire::Type::acknowledge, wire::Acknowledge{hold});
}

bool Peer::withdraw(const DepositKey& key) noexcept {
  return tell(wire::Type::withdraw, wire::Withdraw{wire::to_name(key.first), key.second});
}

/// What is not answered. False when the other process does not read, or is gone.
template <class Body>
bool Peer::tell(wire::Type type, const Body& body) noexcept {
  try {
    const Bytes message = wire::pack(type, body);
    const std::lock_guard lock(ending_mutex_);  // the socket may be let go of, and its number be another's
    return !disconnected_ && socket_.try_send(message);
  } catch (const std::exception&) {
    return false;
  }
}

void acknowledge_to(const std::string& name, std::uint64_t hold) noexcept {
  constexpr std::chrono::milliseconds kPatience{100};  // its socket's queue is full
  try {
    UnixSocket socket = UnixSocket::connect(socket_name(name), kPatience);
    if (socket.peer().uid == geteuid())
      socket.try_send(wire::pack(wire::Type::acknowledge, wire::Acknowledge{hold}));
  } catch (const std::exception&) {  // it is gone, and its holds with it; or they expire
  }
}

SegmentPlace Peer::place_of(std::uint32_t segment, Access access) {
  const Access other = access == Access::read_write ? Access::read_only : Access::read_write;
  SegmentPlace place;
  if (!find_place(segment, access, place)) find_place(segment, other, place);
  return place;
}

Fd Peer::export_table() const {
  const std::lock_guard lock(ending_mutex_);
  return table_file_.duplicate();
}

std::span<std::byte> Peer::bytes_of(std::uint32_t block, Access access) {
  const Record& r = record(block);
  return {place_of(r.segment, access).data + r.offset, r.size};
}

BlockPlace Peer::export_block(std::uint32_t block, Access access) {
  const Record& r = record(block);
  const SegmentPlace place = place_of(r.segment, access);
  return {{block, held_generation(r.word.load()), r.segment, r.offset, r.size},
          place.kind,
          place.size,
          place.data + r.offset,
          place.identity};
}

std::byte* Peer::allow(std::uint32_t block, Access access, int ordinal) {
  std::lock_guard lock(segments_mutex_);
  const std::uint32_t segment = record(block).segment;
  const Access other = access == Access::read_write ? Access::read_only : Access::read_write;
  const Mapped* mapped = find_segment(segment, access);
  if (!mapped) mapped = find_segment(segment, other);
  return mapped ? mapped->memory->allow(ordinal) + record(block).offset : nullptr;
}

ExportedMemory Peer::export_segment(std::uint32_t segment, Access access) const {
  std::lock_guard lock(segments_mutex_);
  const Mapped* mapped = find_segment(segment, Access::read_write);
  if (!mapped && access == Access::read_only) mapped = find_segment(segment, access);
  if (!mapped)
    throw Error(ErrorCode::owner_died,
                fmt::format("segment {} of that owner is not mapped here {}", segment,
                            access == Access::read_write ? "for writing" : "any more"));
  ExportedMemory memory = mapped->memory->export_memory(access);
  memory.device = mapped->identity->uuid;
  return memory;
}

std::size_t Peer::segments() const {
  std::lock_guard lock(segments_mutex_);
  std::size_t count = 0;
  for (const Segments& known : segments_)
    count += std::count_if(known.begin(), known.end(), [](const Mapped& m) { return m.memory != nullptr; });
  return count;
}

Packet Peer::request(Bytes message, std::span<const int> fds, wire::Type answer) {
  Packet packet;
  try {
    std::lock_guard lock(socket_mutex_);
    if (disconnected_) throw Error(ErrorCode::peer_died, "that process is gone");
    if (++last_serial_ == 0) ++last_serial_;
    wire::set_serial(message, last_serial_);
    socket_.send(message, fds, broker_patience());
    packet = receive_answer();
  } catch (const Error& e) {
    rearm();
    if (e.code() == ErrorCode::timeout) throw_silent(pid_, e);
    throw;
  }
  rearm();
  wire::expect(packet.bytes, answer);
  return packet;
}

/// An owner that is not busy answers in less time than it takes to fall asleep and be woken.
Packet Peer::receive_soon() {
  constexpr std::chrono::microseconds kSoon{100};
  if (auto packet = socket_.try_receive_for(kSoon)) return std::move(*packet);
  return socket_.receive(broker_patience());
}

/// Answers to questions that were given up arrive late and belong to nobody.
Packet Peer::receive_answer() {
  for (;;) {
    Packet packet = receive_soon();
    const wire::Type type = wire::type_of(packet.bytes);
    if (type == wire::Type::retire || type == wire::Type::keep) handle_unasked(std::move(packet));
    else if (wire::serial_of(packet.bytes) == last_serial_) return packet;
  }
}

/// What came during a request, the end of the connection included, was not read by the watch thread.
void Peer::rearm() {
  if (watch_) watch_->rearm(socket_.fd());
}

void Peer::on_readable() {
  std::unique_lock lock(socket_mutex_, std::try_to_lock);
  if (lock && !disconnected_) read_unasked();  // else a request is being answered: it rearms the watch
}

/// REQUIRES: socket_mutex_.
void Peer::read_unasked() {
  try {
    while (auto packet = socket_.try_receive()) handle_unasked(std::move(*packet));
  } catch (const Error& e) {
    if (e.code() == ErrorCode::out_of_descriptors) rearm();  // one packet is lost, the others are not
    if (e.code() != ErrorCode::peer_died) throw;
    disconnected_ = true;
    watch_->remove(socket_.fd());
  }
}

void Peer::handle_unasked(Packet packet) {
  switch (wire::type_of(packet.bytes)) {
    case wire::Type::retire: {
      const auto body = wire::body_of<wire::Retire>(packet.bytes);
      retire(body.segment);
      if (deposits_ && deposits_->retire({name_, body.segment})) watch_->request_tick();
      break;
    }
    case wire::Type::keep: {
      const auto body = wire::body_of<wire::Deposit>(packet.bytes);
      if (packet.fds.empty() || !deposits_) return;
      Fd table = std::move(packet.fds[0]);
      deposits_->add({wire::to_string(body.owner), body.segment}, {body.owner_pid, body.owner_start},
                     std::move(table), wire::memory_in<wire::Deposit>(std::move(packet), 1), body.channel);
      break;
    }
    default:
      if (wire::serial_of(packet.bytes) == 0)
        throw Error(ErrorCode::protocol, "an owner sent something it was not asked for");
  }
}

void Peer::check_gone() {
  if (!has_exited(pidfd_)) return;
  {
    const std::unique_lock reading(socket_mutex_, std::try_to_lock);
    if (!reading) return;  // a question to it, which ends now: then we are called again
    watch_->remove(pidfd_.get());
    try {  // what it told us last may be what we need now: segments of its own to keep
      if (!disconnected_) read_unasked();
    } catch (const Error& e) {
      log_warning(fmt::format("process {} has ended: {}", pid_, e.what()));
    }
    watch_->remove(socket_.fd());
    disconnected_ = true;
    gone_ = true;
  }
  if (deposits_) deposits_->forget_elsewhere(name_);
  report_weak_segments();
  {
    const std::lock_guard lock(timeline_mutex_);
    if (timeline_ && !timeline_->end())  // nothing of its is written any more
      log_warning(
          fmt::format("process {} ended before its streams had written what streams of this process "
                      "wait for; those go on, with what is there",
                      pid_));
  }
  watch_->request_tick();
}

/// Whoever still uses tensors in them should know why they fail.
void Peer::report_weak_segments() const {
  std::lock_guard lock(segments_mutex_);
  for (const Segments& known : segments_)
    for (std::size_t segment = 0; segment < known.size(); ++segment)
      if (known[segment].memory && is_weak(known[segment].memory->kind()))
        log_warning(fmt::format("process {} has ended; tensors opened from its segment {} are invalid now",
                                pid_, segment));
}

/// The owner retires a segment only when nobody claims a block of it, so nothing points there.
void Peer::retire(std::uint32_t segment) noexcept {
  std::array<std::unique_ptr<DeviceMemory>, 2> retired;
  std::lock_guard lock(segments_mutex_);
  places_.forget(segment);
  for (std::size_t access = 0; access < 2; ++access)
    if (segment < segments_[access].size()) retired[access] = std::move(segments_[access][segment].memory);
}

bool Peer::try_close() noexcept {
  if (closed_) return true;
  if (!gone_ || is_leased()) return false;
  closed_ = true;
  if (is_leased()) {
    closed_ = false;
    return false;
  }
  std::scoped_lock lock(socket_mutex_, segments_mutex_, ending_mutex_);
  socket_ = UnixSocket();
  places_.forget_all();
  for (Segments& known : segments_) known.clear();
  // A late claimer may still raise a slot and read a word before it sees that we are closed.
  for (Mapping* memory : {&table_, &page_memory_, &count_memory_}) memory->forget();
  table_file_.reset();
  pidfd_.reset();
  return true;
}

void Peer::lock_for_fork() {
  timeline_mutex_.lock();
  socket_mutex_.lock();
  segments_mutex_.lock();
  ending_mutex_.lock();
  if (timeline_) timeline_->lock();
}

void Peer::unlock_after_fork() {
  if (timeline_) timeline_->unlock();
  ending_mutex_.unlock();
  segments_mutex_.unlock();
  socket_mutex_.unlock();
  timeline_mutex_.unlock();
}

void Peer::prepare_fork() {
  if (closed_ || gone_) return;
  if (disconnected_)  // it may live: without the child's page it counts everything of ours as held
    announce_child(page_);
  else fork_page_ = send_child_page(page_, socket_);
}

void Peer::finish_fork_in_parent() noexcept { fork_page_.reset(); }

void Peer::finish_fork_in_child() noexcept {
  if (closed_) return;
  if (!fork_page_) {  // the owner is gone, or counts us with our parent, whose socket we keep: it waits for its end
    disconnected_ = true;
    or_end_child([this] { fork_page_.emplace(ForkPage{private_claims(std::move(page_memory_)), {}}); });
  }
  set_page(std::move(fork_page_->memory));
  if (fork_page_->socket) socket_ = std::move(fork_page_->socket);
  fork_page_.reset();
  take_over_claims(page_, highest_block_ + 1, [&](std::uint32_t block) { return counts_[block].load(); });
  if (!disconnected_) disconnected_ = !greet_owner(socket_);
}

}  // namespace onecopy
