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
#include "share/session.h"

namespace onecopy {
namespace {

constexpr std::chrono::seconds kReceiversMayTake{10};
constexpr std::chrono::seconds kGuestsMayTake{10};  // from opening the queue to joining it
constexpr std::uint64_t kSmallestRange = 1 << 20;

std::uint64_t new_channel_id() {
  std::uint64_t id = 0;
  while (id == 0) random_bytes(std::as_writable_bytes(std::span(&id, 1)));
  return id;
}

/// Returns the file of a new ring, which is not mapped.
Fd make_ring_file(const RingOptions& options, bool may_spin) {
  Ring ring(options);
  SegmentDirectory(ring).describe(new_channel_id(), !may_spin);
  point("queue.create.made");
  return ring.fd().duplicate();
}

/// The descriptor behind a tensor's segment.
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
      sender_(ring_, segments_, creator_),
      receiver_(ring_, segments_, {creator_, introducer}) {
  if (segments_.sleeps()) ring_.set_wait_mode(Ring::WaitMode::block);
}

/// A ring is mapped where it fits, and a queue has two mappings of it.
Channel& Channel::create(const QueueOptions& options) {
  RingOptions ring{"onecopy-queue", options.maxsize, options.range};
  for (;; ring.range /= 2) {
    try {
      return create(ring, options.may_spin);
    } catch (const Error& error) {
      if (ring.range <= kSmallestRange || !may_do_smaller(error)) throw;
    }
  }
}

Channel& Channel::create(const RingOptions& options, bool may_spin) {
  const Fd file = make_ring_file(options, may_spin);
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

Channel& Channel::connect(const Handle& handle) {
  if (!handle.fields().is_queue())
    throw Error(ErrorCode::bad_handle, "this handle does not name a queue; open it with onecopy::open");
  Tensor tensor = Session::open_early(handle.fields(), OpenOptions{Access::read_write, {}, {}});
  if (tensor.device() != kCpu)
    throw Error(ErrorCode::bad_handle, "a queue is memory of the host, not of " + tensor.device().str());
  point("queue.connect.opened");
  const Fd ring = file_of(tensor);
  return ChannelRegistry::instance().enter(std::unique_ptr<Channel>(
      new Channel(std::move(tensor), ring, handle.fields().owner, handle.fields().maker)));
}

Channel& Channel::enter_again() { return ChannelRegistry::instance().enter_again(*this); }

/// Settles marks first: the process may end at once after leaving, without running our code again.
void Channel::leave() noexcept {
  if (Session* const session = Session::existing()) session->streams().settle();
  ChannelRegistry::instance().leave(*this);
}

/// REQUIRES: the registry's lock: a thread that opens this queue from here on opens it anew.
void Channel::close() noexcept {
  Session* session = Session::existing();
  if (!session || session_.load() != session) return;  // a forked child that never used it
  sender_.in_flight().release_taken(UINT64_MAX);       // items that will not be taken
  session->queues().remove_transit(transit_);
  session->queues().close(creator_, id_, is_read_alone_);
}

int Channel::ready_fd(Readiness::LookAround look_around) {
  session();
  return ChannelRegistry::instance().ready_fd(*this, std::move(look_around));
}

/// REQUIRES: the registry's lock, and no thread in note_change().
void Channel::forget_readiness() noexcept {
  ready_ = nullptr;
  readiness_.reset();
}

Handle Channel::handle() { return session().share(memory_, kHandleIsQueue); }

void Channel::join_again(Session& session, Deadline deadline) {
  constexpr std::chrono::seconds kCreatorTakesAtMost{2};  // it hears of it once it goes on
  const DeadlineScope scope(std::min(deadline, Deadline::after(kCreatorTakesAtMost)));
  ChannelRegistry::instance().join(*this, session);
}

/// REQUIRES: the registry's lock. In a forked child what the parent did with the queue is forgotten.
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

/// Tells the creator, once. If the creator is gone, the queue goes on among its other users. A creator that could not
/// be told is told at the next use.
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
  } catch (const Error&) {  // a damaged ring: its items will not be taken
    return {};
  }
}

void Channel::count_users(std::size_t others) noexcept {
  others_ = others;
  ring_.set_users(static_cast<std::uint32_t>(others + 1));
  ChannelRegistry::look_soon();
}

/// Returns whether a process may be about to join with a handle. The process opens the handle, which ends the hold, and
/// joins afterwards. REQUIRES: the registry's lock.
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

/// Counts only processes that have a Queue object. Processes that keep the queue for its items alone do not keep it for
/// each other.
bool Channel::is_needed() noexcept {
  const bool is_over = is_alone();
  if (is_invited()) return true;
  return !is_over && (others_ != 0 || !sender_.in_flight().empty());
}

/// The receiver of our items may be on its way with a handle, but not for ever.
bool Channel::is_alone() noexcept {
  const auto now = std::chrono::steady_clock::now();
  if (is_role_held(ring_.fd(), Role::user)) alone_since_.reset();
  else if (!alone_since_) alone_since_ = now;
  is_left_ = alone_since_.has_value();
  return alone_since_ && now - *alone_since_ >= kReceiversMayTake;
}

/// Holds the role before the parent can leave, which must see that its child has the queue too.
void Channel::hold_role_in_child() noexcept {
  ring_.forget_waiting();
  try {
    ring_.use_file(hold_role(ring_.fd(), Role::user));
  } catch (const Error& error) {
    log_warning("a forked child shares its parent's place in a queue: {}", error.what());
  }
}

bool Channel::look() noexcept {
  const bool more = sender_.in_flight().release_taken(ring_.head(), false);
  sender_.in_flight().note_age();
  return more;
}

/// A queue that is gone has no items to lose. Items still to be taken out of it keep it here.
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
