// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/point.h"
#include "onecopy/core/error.h"
#include "os/deadline_scope.h"
#include "os/log.h"
#include "os/process.h"
#include "rpc/node.h"
#include "share/session.h"

/// Members: how they find each other, and how it is known that they end.
namespace onecopy::rpc {
namespace {

/// How often a thread that waits for a member to answer its greeting looks for greetings of others, which that member may wait
/// for: usually a worker does.
constexpr std::chrono::milliseconds kConnectSlice{5};

[[noreturn]] void throw_member_ended(const Member& member) {
  throw Error(ErrorCode::peer_died, fmt::format("{} (pid {}) has ended before it could be called",
                                                member.name(), member.address.pid));
}

/// Puts a note through a member's door.
void put_through_door(const Address& address, const DoorbellMemory& bell, NoteKind kind, Bytes&& body) {
  Message note;
  note.tag = static_cast<std::uint32_t>(Form::note);
  note.data = std::move(body);
  append_tail(note.data, NoteTail{kind, 0});
  Outbound(ChannelRef(&Channel::connect(address.door)), {}).put(note);
  bell->calls.ring();
}

}  // namespace

Address Node::address() {
  const int pid = current_pid();
  return {options_.name,  options_.number, pid,         process_start_time(pid),
          door_.handle(), bell_->handle(), this_host(), far_->endpoint()};
}

Member& Node::join(const Address& address) { return enter(address); }

bool Node::is_own(const Address& address) const {
  return address.name == options_.name && address.pid == current_pid() && address.host == this_host();
}

Member& Node::enter(const Address& address) {
  const LockGuard lock(members_mutex_);
  for (const auto& known : members_) {
    if (known->number() != address.number) continue;
    const bool is_same = known->name() == address.name && known->address.pid == address.pid &&
                         known->address.host == address.host;
    if (is_same) return *known;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("member {} of the group is {}, and cannot be {} as well", address.number,
                            known->name(), address.name));
  }
  if (address.number == options_.number && !is_own(address))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("member {} of the group is {}, this process, and cannot be {} (pid {}) as well",
                            address.number, options_.name, address.name, address.pid));
  auto member = std::make_unique<Member>(address);
  member->opened = std::make_shared<Call>(address.number, kForever);
  if (address.number == options_.number) set_out_for_itself(*member);
  else if (is_far(address)) enter_far(*member);
  else watch_over(*member);
  members_.push_back(std::move(member));
  auto list = std::make_unique<MemberList>(*list_.load());
  list->push_back(members_.back().get());
  list_ = list.get();
  lists_.push_back(std::move(list));
  return *members_.back();
}

void Node::set_out_for_itself(Member& me) {
  me.inbound = std::make_unique<Inbound>();
  me.outbound = std::make_unique<Outbound>(me.inbound->sender_to_itself(), bell_);
  me.is_greeted = true;
  me.in = me.inbound.get();
  me.out = me.outbound.get();
}

/// The watch thread only notes an exit: a thread that looks at the lanes reads the messages that are left there first.
void Node::watch_over(Member& member) {
  member.exit = std::make_shared<std::atomic<bool>>(false);
  const auto note = [exit = member.exit, bell = bell_] {
    exit->store(true);
    (*bell)->calls.ring();
    (*bell)->answers.ring_all();
  };
  try {
    member.pidfd = open_pidfd(member.address.pid);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::peer_died) throw;
    return note();
  }
  if (process_start_time(member.address.pid) != member.address.start_time) return note();
  session_.loop().add(member.pidfd.get(), note, true);
}

/// REQUIRES: turn_, or no thread that looks at the lanes.
void Node::stop_watching(Member& member) noexcept {
  if (!member.pidfd) return;
  session_.loop().remove(member.pidfd.get());
  member.pidfd.reset();
}

/// Of a member that has ended, once no thread uses them. REQUIRES: turn_.
void Node::release_lanes(Member& member) {
  if (!member.opening.try_lock()) return;  // by a thread that opens the member; the next look releases them
  const LockGuard lock(member.opening, std::adopt_lock);
  if (!member.outbound && !member.inbound) return;
  if (member.senders.load() != 0 || lookers_.load() != 0) return;
  member.out = nullptr;
  member.in = nullptr;
  if (member.outbound) member.outbound->drop_sent();
  member.outbound.reset();
  member.inbound.reset();
  member.bell.reset();
  member.links.clear();
}

Member* Node::find(std::uint32_t number) {
  for (Member* member : *list_.load())
    if (member->number() == number) return member;
  return nullptr;
}

/// A program that has died may have come back under its name with another number.
Member* Node::find(std::string_view name) {
  Member* latest = nullptr;
  for (Member* member : *list_.load()) {
    if (member->name() != name) continue;
    if (!member->has_ended) return member;
    latest = member;
  }
  return latest;
}

void Node::connect(Member& to, Deadline deadline) {
  if (to.out.load(std::memory_order_acquire)) return;
  if (!to.is_far) greet(to);
  point("rpc.lane.greeted");
  while (!to.opened->is_done()) {
    check_can_send(to);
    if (to.is_far) connect_far(to, deadline);  // again, if another thread has tried in vain
    if (Work greeting; idle_.load() == 0 && work_.try_pop_greeting(greeting)) take_greetings();
    if (!waits_.wait(to.opened, std::min(deadline, Deadline::after(kConnectSlice))) &&
        deadline.left(kSleepSlice) == std::chrono::nanoseconds{0})
      throw Error(ErrorCode::timeout, fmt::format("{} has not answered the greeting in time", to.name()));
  }
  if (!to.out.load(std::memory_order_acquire)) {
    check_can_send(to);
    throw_member_ended(to);
  }
}

/// Tells the member which lane to send through. Once.
void Node::greet(Member& to) {
  const LockGuard lock(to.opening);
  if (to.is_greeted || to.has_ended) return;
  try {
    if (!to.inbound) to.inbound = std::make_unique<Inbound>();
    to.in = to.inbound.get();
    if (!to.bell) to.bell = std::make_shared<DoorbellMemory>(to.address.bell);
    put_through_door(to.address, *to.bell, NoteKind::greeting,
                     encode_greeting(address(), to.inbound->handle()));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::owner_died && error.code() != ErrorCode::stale_handle &&
        error.code() != ErrorCode::closed && error.code() != ErrorCode::peer_died)
      throw;
    throw_member_ended(to);
  }
  to.is_greeted = true;
}

void Node::take_greetings() noexcept {
  const LockGuard lock(door_mutex_);
  for (bool is_first = true; !try_read_door(is_first) && !is_stopped(); is_first = false) continue;
  is_door_read_ = false;
}

/// Returns false while the sender of the first message does not let this process read it. A stopped process is one.
bool Node::try_read_door(bool is_first) noexcept {
  try {
    while (auto message = door_.try_take()) take_from_door(*message);
    return true;
  } catch (const Error& error) {  // a stranger, or one that has ended meanwhile
    if (is_first)
      log_warning(fmt::format("a process could not join this member's group: {}", error.what()));
    return !door_.is_ready() || error.code() != ErrorCode::timeout;
  } catch (const std::exception& error) {
    log_warning(fmt::format("a greeting was not answered: {}", error.what()));
    return true;
  }
}

void Node::take_from_door(const Message& message) {
  Bytes data = message.data;
  const auto [kind, reserved] = take_tail<NoteTail>(data);
  if (kind == NoteKind::greeting) return open_lane_of(data);
  if (kind != NoteKind::farewell) refuse_message("came through the door and is no greeting");
  Member& member = enter(Address::from_bytes(data));
  member.has_left = true;
  if (member.exit) *member.exit = true;  // the thread that looks at the lanes ends the member
}

/// The other's lane, for messages of this process; and a greeting in return.
void Node::open_lane_of(ByteSpan bytes) {
  const auto [from, lane] = decode_greeting(bytes);
  Member& member = enter(from);
  {
    const LockGuard lock(member.opening);
    if (member.outbound || member.has_ended) return;
    if (!member.bell) member.bell = std::make_shared<DoorbellMemory>(from.bell);
    member.outbound = std::make_unique<Outbound>(ChannelRef(&Channel::connect(lane)), member.bell);
    member.out = member.outbound.get();
  }
  point("rpc.lane.opened");
  greet(member);
  complete(member.opened, End::answered);
}

void Node::say_farewell(Member& to, Deadline deadline) noexcept {
  if (to.number() == options_.number || to.has_ended || to.has_exited()) return;
  try {
    const LaneGuard guard(to);
    if (Outbound* const out = guard.lane()) {
      Message note;
      note.tag = static_cast<std::uint32_t>(Form::note);
      append_tail(note.data, NoteTail{NoteKind::farewell, 0});
      out->put(note, {}, deadline);
      out->ring_for_call();
    } else if (!to.is_far && !deadline.has_passed()) {
      const DeadlineScope scope(deadline);
      put_through_door(to.address, DoorbellMemory(to.address.bell), NoteKind::farewell,
                       address().to_bytes());
    }
  } catch (const std::exception& error) {  // it has ended meanwhile, or is stopped
    log_debug(fmt::format("{} could not be told that this process leaves: {}", to.name(), error.what()));
  }
}

}  // namespace onecopy::rpc
