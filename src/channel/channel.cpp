// SPDX-License-Identifier: Apache-2.0
#include "channel/channel.h"

#include <fmt/format.h>

#include "channel/channel_registry.h"
#include "channel/presence.h"
#include "onecopy/core/error.h"
#include "onecopy/os/log.h"
#include "onecopy/os/memfd.h"
#include "onecopy/os/random.h"
#include "share/process.h"

namespace onecopy {
namespace {

/// All processes use a queue alike, as far as its creator has to count them.
constexpr std::uint8_t kRole = 0;
constexpr std::chrono::seconds kReceiversMayTake{10};
constexpr std::uint64_t kSmallestRange = 1 << 20;

const ProcessId& owner_of(const Tensor& tensor) {
  return static_cast<SharedKeeper&>(*tensor.block().keeper()).owner();
}

std::uint64_t new_channel_id() {
  std::uint64_t id = 0;
  while (id == 0) random_bytes(std::as_writable_bytes(std::span(&id, 1)));
  return id;
}

/// Not mapped any more.
Fd make_ring_file(const RingOptions& options) {
  Ring ring(options);
  OriginTable(ring).set_channel(new_channel_id());
  point("queue.create.made");
  return ring.fd().duplicate();
}

}  // namespace

Channel::Channel(Tensor memory, const Fd& ring)
    : memory_(std::move(memory)),
      ring_(play(ring, Role::user)),
      origins_(ring_),
      creator_(owner_of(memory_)),
      id_(origins_.channel()),
      sender_(ring_, origins_, creator_),
      receiver_(ring_, origins_) {}

/// A ring is mapped where it fits, and a queue has two mappings of it.
Channel& Channel::create(std::uint64_t maxsize) {
  RingOptions options;
  options.name = "onecopy-queue";
  options.max_items = maxsize;
  for (;; options.range /= 2) {
    try {
      return create(options);
    } catch (const Error& error) {
      if (!is_lack_of_room(error) || options.range <= kSmallestRange) throw;
    }
  }
}

Channel& Channel::create(const RingOptions& options) {
  const Fd file = make_ring_file(options);
  const std::uint64_t size = file_size(file);
  ExportedMemory memory{SegmentKind::memfd, size, {}, {}};
  memory.fds.push_back(file.duplicate());
  Tensor tensor = Process::current().adopt(
      backend(DeviceType::cpu).open(0, std::move(memory), Access::read_write), size);
  point("queue.create.adopted");
  return ChannelRegistry::instance().enter(std::unique_ptr<Channel>(new Channel(std::move(tensor), file)));
}

Channel& Channel::connect(const Handle& handle) {
  if (!handle.fields().is_queue())
    throw Error(ErrorCode::bad_handle, "this handle does not name a queue; open it with onecopy::open");
  const EarlyCall early(handle.fields().owner);
  Tensor tensor = Process::current().open(handle.fields(), Access::read_write);
  if (tensor.device() != kCpu)
    throw Error(ErrorCode::bad_handle, "a queue is memory of the host, not of " + tensor.device().str());
  point("queue.connect.opened");
  const Fd ring = Process::segment_file(tensor);
  return ChannelRegistry::instance().enter(std::unique_ptr<Channel>(new Channel(std::move(tensor), ring)));
}

Channel& Channel::enter_again() { return ChannelRegistry::instance().enter_again(*this); }

/// Whoever leaves may end at once, without any more of our code being run.
void Channel::leave() noexcept {
  Process::settle_streams();
  ChannelRegistry::instance().leave(*this);
}

/// REQUIRES: the registry's lock: who opens the same queue again from here on opens it anew.
void Channel::close() noexcept {
  Process* process = Process::existing();
  if (!process || process_.load() != process) return;  // a forked child that never used it
  sender_.sent().release_taken(UINT64_MAX);            // what nobody will take
  process->remove_transit(transit_);
  process->close_channel(creator_, id_, kRole);
}

int Channel::ready_fd() {
  process();
  return ChannelRegistry::instance().ready_fd(*this);
}

/// REQUIRES: the registry's lock, and nobody in note_change().
void Channel::forget_readiness() noexcept {
  ready_ = nullptr;
  readiness_.reset();
}

Handle Channel::handle() { return process().share(memory_, kHandleIsQueue); }

Process& Channel::current_process() { return Process::current(); }

void Channel::join_again(Process& process, TimePoint deadline) {
  const Patience patience(deadline);
  ChannelRegistry::instance().join(*this, process);
}

/// REQUIRES: the registry's lock. In a forked child what the parent did with the queue is forgotten.
void Channel::settle_in(Process& process) {
  if (process_) {
    sender_.reset();
    receiver_.reset();
    others_ = 0;
  }
  is_announced_ = false;
  is_announcing_.clear();
  transit_ = process.add_transit([this] { return in_transit(); });
  process_.store(&process, std::memory_order_release);
}

/// Tells the creator, once. It may be gone: then the queue goes on among its other users. One that could not be told
/// is told at the next use.
void Channel::announce(Process& process) {
  if (is_announcing_.test_and_set()) return;
  try {
    if (!is_announced_) is_announced_ = try_announce(process);
  } catch (...) {
    is_announcing_.clear();
    throw;
  }
  is_announcing_.clear();
}

bool Channel::try_announce(Process& process) {
  process.broker().listen();
  ChannelHooks hooks;
  hooks.progress = [this] { return progress(); };
  if (creator_ == process.id())
    hooks.users = [this](std::uint8_t, std::size_t users) { count_users(users); };
  try {
    process.open_channel(creator_, id_, kRole, std::move(hooks));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::timeout) return false;
    if (error.code() != ErrorCode::peer_died) throw;
  }
  point("queue.connect.joined");
  return true;
}

std::optional<std::pair<std::uint64_t, std::uint64_t>> Channel::progress() const noexcept {
  try {
    return std::pair(ring_.put_count(), ring_.head());
  } catch (const Error&) {  // a damaged ring: nobody will take anything out of it
    return {};
  }
}

void Channel::count_users(std::size_t others) noexcept {
  others_ = others;
  ring_.set_users(static_cast<std::uint32_t>(others + 1));
  if (Process* process = process_) process->watch().request_tick();
}

/// Whoever will take our items may be on its way with a handle; nobody is on its way for ever.
bool Channel::is_needed() noexcept {
  if (others_ != 0) return true;
  if (sender_.sent().empty()) return false;
  const auto now = std::chrono::steady_clock::now();
  if (is_played(ring_.fd(), Role::user)) alone_since_.reset();
  else if (!alone_since_) alone_since_ = now;
  return !alone_since_ || now - *alone_since_ < kReceiversMayTake;
}

/// Before the parent can leave: it must see that its child has the queue too.
void Channel::play_in_child() noexcept {
  ring_.forget_waiting();
  try {
    ring_.use_file(play(ring_.fd(), Role::user));
  } catch (const Error& error) {
    log_warning(fmt::format("a forked child shares its parent's place in a queue: {}", error.what()));
  }
}

bool Channel::tick() noexcept {
  const bool more = sender_.sent().release_taken(ring_.head(), false);
  sender_.sent().note_age();
  return more;
}

TransitInfo Channel::in_transit() const {
  return sender_.sent().info(fmt::format("queue {:08x}", static_cast<std::uint32_t>(id_)));
}

}  // namespace onecopy
