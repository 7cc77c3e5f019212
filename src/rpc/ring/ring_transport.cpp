// SPDX-License-Identifier: Apache-2.0
#include "rpc/ring/ring_transport.h"

#include <fmt/format.h>

#include <utility>

#include "core/point.h"
#include "onecopy/core/error.h"
#include "os/deadline_scope.h"
#include "os/log.h"
#include "os/process.h"
#include "rpc/message.h"
#include "share/session.h"

namespace onecopy::rpc {
namespace {

/// The time for which the thread that reads the door waits for the sender of a greeting.
constexpr std::chrono::milliseconds kDoorPatience{100};

/// Puts a note into a member's door, the queue that its address names.
void put_through_door(const Address& address, const DoorbellMemory& bell, NoteKind kind, Bytes&& body) {
  Message note;
  note.tag = static_cast<std::uint32_t>(Form::note);
  note.data = std::move(body);
  append_tail(note.data, NoteTail{kind, 0});
  RingConnection(ChannelRef(&Channel::connect(address.door)), {}).send(note, {}, kForever);
  bell->calls.ring();
}

}  // namespace

/// Watches the member's process. The watch thread only sets a flag: a thread that looks at the lanes first reads the
/// messages that are left in them.
void RingTransport::watch(Member& member) {
  auto state = std::make_unique<State>();
  const auto note_exit = host_.end_of(member);
  try {
    state->process = {member.address.pid, open_pidfd(member.address.pid)};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::peer_died) throw;
  }
  const bool lives = state->process && process_start_time(member.address.pid) == member.address.start_time;
  if (lives) {
    state->process.start(session_.loop(), note_exit);
  } else {
    state->process = {};
    note_exit();
  }
  member.state = std::move(state);
}

void RingTransport::open(Member& to, Deadline) {
  const LockGuard lock(to.opening);
  if (!to.state || state_of(to).is_greeted || to.has_ended) return;
  try {
    greet(to);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::owner_died && error.code() != ErrorCode::stale_handle &&
        error.code() != ErrorCode::closed && error.code() != ErrorCode::peer_died)
      throw;
    throw_ended_early(to);
  }
}

/// Tells the member into which lane it has to put its messages.
void RingTransport::greet(Member& to) {
  State& state = state_of(to);
  if (!to.inbound) to.inbound = std::make_unique<Inbound>();
  to.in = to.inbound.get();
  if (!state.bell) state.bell = std::make_shared<DoorbellMemory>(to.address.bell);
  put_through_door(to.address, *state.bell, NoteKind::greeting,
                   encode_greeting(host_.address(), to.inbound->handle()));
  state.is_greeted = true;
}

void RingTransport::serve_newcomers() noexcept {
  const LockGuard lock(door_mutex_);
  if (!door_) return;
  point("rpc.door.locked");
  for (bool is_first = true; !try_read_door(is_first) && !host_.is_stopped(); is_first = false) continue;
  is_door_read_ = host_.is_stopped();
}

/// A process that greets after the door was closed learns it from its put.
void RingTransport::close_door(Deadline deadline) noexcept {
  const LockGuard lock(door_mutex_);
  is_door_read_ = true;
  const DeadlineScope scope(deadline);
  try {
    door_->close(deadline);
    while (auto message = door_->try_take(kDoorPatience)) refuse_newcomer(*message);
  } catch (const std::exception& error) {  // a process that is stopped
    log_debug(fmt::format("a process could not be told that this process leaves: {}", error.what()));
  }
}

void RingTransport::release_door() noexcept {
  if (!door_mutex_.try_lock()) return;
  const LockGuard lock(door_mutex_, std::adopt_lock);
  door_.reset();
}

Inbound& RingTransport::door() const {
  if (!door_) throw Error(ErrorCode::closed, "this process has left the group");
  return *door_;
}

void RingTransport::refuse_newcomer(const Message& message) noexcept {
  try {
    Bytes data = message.data;
    if (take_tail<NoteTail>(data).kind != NoteKind::greeting) return;
    turn_away(decode_greeting(data).first, NoteKind::farewell);
  } catch (const std::exception& error) {  // a stranger
    log_debug(fmt::format("a greeting was not read: {}", error.what()));
  }
}

/// Tells a process that its greeting is not answered with one.
void RingTransport::turn_away(const Address& from, NoteKind why) noexcept {
  try {
    put_through_door(from, DoorbellMemory(from.bell), why, host_.address().to_bytes());
  } catch (const std::exception& error) {  // a process that has ended
    log_debug(fmt::format("a process could not be told that it is not answered: {}", error.what()));
  }
}

Member& RingTransport::enter_greeter(const Address& from) {
  try {
    return host_.enter(from);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::invalid_argument) turn_away(from, NoteKind::refusal);
    throw;
  }
}

/// Reads the door to its end. Returns false if the sender of the first message, which may be stopped, does not let this
/// process read that message.
bool RingTransport::try_read_door(bool is_first) noexcept {
  try {
    while (auto message = door_->try_take(kDoorPatience)) take_from_door(*message);
    return true;
  } catch (const Error& error) {  // a stranger, or a process that has ended
    if (is_first)
      log_warning(fmt::format("a process could not join this member's group: {}", error.what()));
    return !door_->is_ready() || error.code() != ErrorCode::timeout;
  } catch (const std::exception& error) {
    log_warning(fmt::format("a greeting was not answered: {}", error.what()));
    return true;
  }
}

void RingTransport::take_from_door(const Message& message) {
  Bytes data = message.data;
  const auto [kind, reserved] = take_tail<NoteTail>(data);
  if (kind == NoteKind::greeting) return open_lane_of(data);
  if (kind != NoteKind::farewell && kind != NoteKind::refusal)
    refuse_message("came through the door and is no greeting");
  Member& member = host_.enter(Address::from_bytes(data));
  (kind == NoteKind::farewell ? member.has_left : member.has_refused) = true;
  if (member.exit) host_.end_of(member)();  // the thread that looks at the lanes ends the member
}

/// Opens the lane for messages to the greeter, and greets in return.
void RingTransport::open_lane_of(ByteSpan bytes) {
  const auto [from, lane] = decode_greeting(bytes);
  Member& member = enter_greeter(from);
  if (member.transport != this) refuse_message("greets this process, and is no other process of this host");
  {
    const LockGuard lock(member.opening);
    if (member.outbound || member.has_ended || !member.state) return;
    State& state = state_of(member);
    if (!state.bell) state.bell = std::make_shared<DoorbellMemory>(from.bell);
    member.outbound = std::make_unique<RingConnection>(ChannelRef(&Channel::connect(lane)), state.bell);
    member.out = member.outbound.get();
  }
  point("rpc.lane.opened");
  open(member, kForever);
  host_.note_opened(member);
}

void RingTransport::say_farewell(Member& to, Deadline deadline) {
  if (deadline.has_passed()) return;
  const DeadlineScope scope(deadline);
  put_through_door(to.address, DoorbellMemory(to.address.bell), NoteKind::farewell,
                   host_.address().to_bytes());
}

bool RingTransport::has_exited(Member& member) const {
  const LockGuard lock(member.opening);
  return member.state && state_of(member).process && state_of(member).process.has_ended();
}

void RingTransport::close(Member& member) noexcept {
  const LockGuard lock(member.opening);
  if (member.state) state_of(member).process = {};
}

}  // namespace onecopy::rpc
