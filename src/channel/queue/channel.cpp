// SPDX-License-Identifier: Apache-2.0
#include "channel/queue/channel.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "channel/queue/channel_registry.h"
#include "channel/ring/role_lock.h"
#include "onecopy/core/error.h"
#include "os/deadline_scope.h"
#include "os/log.h"
#include "os/memfd.h"
#include "os/random.h"

namespace onecopy {
namespace {

constexpr std::chrono::seconds kReceiversMayTake{10};
// The time that a process may take from opening a queue's handle to joining the queue.
constexpr std::chrono::seconds kGuestsMayTake{10};

std::uint64_t new_channel_id() {
  std::uint64_t id = 0;
  while (id == 0) id = random_value<std::uint64_t>();
  return id;
}

/// Returns the file of a new ring, which is not mapped.
Fd make_ring_file(const RingOptions& made, const QueueOptions& options) {
  Ring ring(made);
  SegmentDirectory(ring).describe(new_channel_id(), !options.may_spin, options.ends_with_producers);
  point("queue.create.made");
  return ring.fd().duplicate();
}

/// Returns the descriptor of a tensor's segment.
Fd file_of(const Tensor& tensor) {
  SharedBlocks& group = shared_blocks(tensor, "share");
  const std::uint32_t segment = group.export_block(tensor.block().number(), tensor.access()).info.segment;
  return std::move(group.export_segment(segment, tensor.access()).fds.at(0));
}

}  // namespace

Channel::Channel(Tensor memory, const Fd& ring, const ProcessId& creator, const ProcessId& introducer)
    : memory_(std::move(memory)),
      ring_(hold_role(ring, Role::user), ring),
      segments_(ring_),
      creator_(creator),
      id_(segments_.queue()),
      ends_with_producers_(segments_.ends_with_producers()),
      sender_(ring_, segments_, creator_),
      receiver_(ring_, segments_, {creator_, introducer}) {
  if (segments_.sleeps()) ring_.set_wait_mode(Ring::WaitMode::block);
}

Channel& Channel::create(const QueueOptions& options) {
  const Fd file = make_ring_file({"onecopy-queue", options.maxsize, options.range}, options);
  const std::uint64_t size = file_size(file);
  ExportedMemory memory{SegmentKind::memfd, size, {}, {}};
  memory.fds.push_back(file.duplicate());
  Session& session = Session::current();
  Tensor tensor =
      session.adopt(backend(DeviceType::cpu).open(0, std::move(memory), Access::read_write), size);
  point("queue.create.adopted");
  return ChannelRegistry::instance().enter(
      std::unique_ptr<Channel>(new Channel(std::move(tensor), file, session.id(), session.id())));
}

Channel& Channel::connect(const Handle& handle, Deadline deadline) {
  if (!handle.fields().is_queue())
    throw Error(ErrorCode::bad_handle, "this handle does not name a queue; open it with onecopy::open");
  const DeadlineScope limit(deadline);
  Tensor tensor = open_any(handle.fields(), OpenOptions{Access::read_write, {}, {}});
  if (tensor.device() != kCpu)
    throw Error(ErrorCode::bad_handle, "a queue is memory of the host, not of " + tensor.device().str());
  point("queue.connect.opened");
  const Fd ring = file_of(tensor);
  return ChannelRegistry::instance().enter(
      std::unique_ptr<Channel>(
          new Channel(std::move(tensor), ring, handle.fields().owner, handle.fields().maker)),
      deadline);
}

/// Takes the role before noting it, so that the queue does not end in between.
void Channel::hold_producer_role() {
  hold_role_again(ring_.fd(), Role::producer);
  point("queue.producer.held");
  segments_.note_producer();
  is_producer_ = true;
}

bool Channel::close_if_deserted() {
  if (!ends_with_producers_ || ring_.is_closed()) return ring_.is_closed();
  if (is_producer_ || !segments_.has_had_producer() || is_role_held(ring_.fd(), Role::producer))
    return false;
  return try_close();
}

bool Channel::try_close() {
  try {
    ring_.close(kNow);
  } catch (const Error& error) {  // a stopped process holds the lock: tries again at the next look
    if (error.code() != ErrorCode::timeout) throw;
    return false;
  }
  return true;
}

Channel& Channel::enter_again() { return ChannelRegistry::instance().enter_again(*this); }

/// Settles the marks of streams first, because the process may end at once after leaving without running our code
/// again.
void Channel::leave() noexcept {
  if (Session* const session = Session::existing()) session->streams().settle();
  ChannelRegistry::instance().leave(*this);
}

/// Closes the channel; a thread that opens the queue later makes a new channel. REQUIRES: the registry's lock.
void Channel::close() noexcept {
  Session* session = Session::existing();
  if (!session || session_.load() != session) return;  // a forked child that never used the queue
  sender_.in_flight().release_taken(UINT64_MAX);       // releases the items that no process will take
  session->queues().remove_transit(transit_);
  session->queues().close(creator_, id_, is_read_alone_);
}

int Channel::ready_fd(Readiness::LookAround look_around) {
  session();
  return ChannelRegistry::instance().ready_fd(*this, std::move(look_around));
}

/// Drops the descriptor of ready_fd(). REQUIRES: the registry's lock, and no thread in note_change().
void Channel::forget_readiness() noexcept {
  ready_ = nullptr;
  readiness_.reset();
}

Handle Channel::handle() { return session().share(memory_, kHandleIsQueue); }

void Channel::join_again(Session& session, Deadline deadline) {
  constexpr std::chrono::seconds kCreatorTakesAtMost{2};  // a stopped creator is told once it continues
  const DeadlineScope scope(std::min(deadline, Deadline::after(kCreatorTakesAtMost)));
  ChannelRegistry::instance().join(*this, session);
}

/// Makes the channel this process's own. A forked child forgets what its parent did with the queue. REQUIRES: the
/// registry's lock.
void Channel::settle_in(Session& session) {
  if (Session* const parent = session_) {
    ring_.check_namespace();
    sender_.reset();
    receiver_.unpacker().reset(parent->id());
    others_ = 0;
  }
  is_announced_ = is_read_alone_ = false;
  is_announcing_.clear();
  transit_ = session.queues().add_transit({[this] { return in_transit(); }, [this] { return unkept(); }});
  session_.store(&session, std::memory_order_release);
}

/// Tells the creator once that this process uses the queue. If the creator is gone, its other users continue to use the
/// queue. A creator that could not be told is told at the next use.
void Channel::announce(Session& session) {
  if (is_announcing_.test_and_set()) return;
  try {
    if (!is_announced_) is_announced_ = try_announce(session);
  } catch (...) {
    is_announcing_.clear();
    throw;
  }
  is_announcing_.clear();
}

bool Channel::try_announce(Session& session) {
  QueueHooks hooks;
  hooks.progress = [this] { return progress(); };
  if (creator_ == session.id()) hooks.users = [this](std::size_t users) { count_users(users); };
  if (!session.queues().open(creator_, id_, std::move(hooks))) return false;
  point("queue.connect.joined");
  return true;
}

std::optional<QueueProgress> Channel::progress() const noexcept {
  try {
    return QueueProgress{ring_.put_count(), ring_.head()};
  } catch (const Error&) {  // a damaged ring, whose items no process will take
    return {};
  }
}

void Channel::count_users(std::size_t others) noexcept {
  others_ = others;
  ring_.set_users(static_cast<std::uint32_t>(others + 1));
  ChannelRegistry::poll_soon();
}

/// Returns whether a process may be about to join with a handle. The process has opened the handle, which has ended the
/// hold, and has not joined yet. REQUIRES: the registry's lock.
bool Channel::is_invited() noexcept {
  Session* const session = session_;
  if (!session || creator_ != session->id()) return false;
  const auto now = std::chrono::steady_clock::now();
  if (session->holds().contain(memory_.block())) invited_until_ = now + kGuestsMayTake;
  return now < invited_until_;
}

/// REQUIRES: the registry's lock.
void Channel::give_up() noexcept {
  if (queues_ != 0) return;
  is_alone();
  if (alone_since_) alone_since_ = std::chrono::steady_clock::time_point{};
  invited_until_ = {};
}

/// Returns whether another process needs the channel. Counts only processes with a Queue object: processes that keep
/// the queue only for its items do not keep it for each other.
bool Channel::is_needed() noexcept {
  if (is_read_alone_) return false;
  const bool is_over = is_alone();
  if (is_invited()) return true;
  return !is_over && (others_ != 0 || !sender_.in_flight().empty());
}

/// Returns whether no process is left that can take our items. A process that was sent a handle may still join, within
/// a limited time.
bool Channel::is_alone() noexcept {
  const auto now = std::chrono::steady_clock::now();
  if (is_role_held(ring_.fd(), Role::user)) alone_since_.reset();
  else if (!alone_since_) alone_since_ = now;
  is_left_ = alone_since_.has_value();
  return alone_since_ && now - *alone_since_ >= kReceiversMayTake;
}

/// Takes the role lock in a forked child, before the parent can leave the queue, so that the parent sees that its child
/// has the queue too.
void Channel::hold_role_in_child() noexcept {
  ring_.forget_waiting();
  is_producer_ = false;
  try {
    ring_.use_file(hold_role(ring_.fd(), Role::user));
  } catch (const Error& error) {
    log_warning("a forked child shares its parent's place in a queue: {}", error.what());
  }
}

bool Channel::poll() noexcept {
  const bool more = sender_.in_flight().release_taken(ring_.head(), false);
  sender_.in_flight().note_age();
  return more;
}

/// Returns the number of segments that would be lost with this process; 0 if the queue is gone, which has no items to
/// lose.
std::uint64_t Channel::unkept() const noexcept {
  const bool is_over = queues_ == 0 || ring_.is_closed();
  return is_over && sender_.in_flight().empty() ? 0 : sender_.unkept();
}

TransitInfo Channel::in_transit() const {
  return sender_.in_flight().info(fmt::format(
      "queue {:08x}{}", static_cast<std::uint32_t>(id_),
      is_left_ ? ", whose users have gone (kept for ten seconds, or until memory is short)" : ""));
}

}  // namespace onecopy
