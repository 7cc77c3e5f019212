// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include "core/point.h"
#include "core/throw_error.h"
#include "os/log.h"
#include "os/process.h"
#include "rpc/node.h"
#include "rpc/ring/ring_transport.h"
#include "share/session.h"

/// The part of a node that keeps the table of members and their connections.
namespace onecopy::rpc {
namespace {

/// The interval at which a thread that waits for the answer to its greeting reads the greetings of other members
/// itself. Usually a worker reads them, but if none is free, two members would wait for each other.
constexpr std::chrono::milliseconds kConnectSlice{5};

}  // namespace

Address Node::address() {
  const int pid = current_pid();
  Address own{options_.name,   options_.number, pid, process_start_time(pid), {},
              bell_->handle(), this_host(),     {}};
  for (const auto& transport : transports_) transport->complete(own);
  return own;
}

/// Calls the ring transport alone, because the others accept newcomers in threads of their own.
void Node::serve(const Work& work) noexcept {
  if (work.from) open_first(*work.from);
  else ring_->serve_newcomers();
}

/// Does the work of a worker in this thread if no worker is free, since this thread may wait for the work's effect.
void Node::serve_if_all_are_busy() noexcept {
  if (Work work; idle_.load() == 0 && work_.try_pop_service(work)) serve(work);
}

void Node::note_opened(Member& member) noexcept { complete(member.opened, End::answered); }

Member& Node::join(const Address& address, bool may_restart) {
  const LockGuard lock(members_mutex_);
  Member& member = enter_locked(address, may_restart || options_.members_may_restart);
  if (may_restart) member.may_restart = true;
  return member;
}

Member& Node::enter(const Address& address) {
  const LockGuard lock(members_mutex_);
  return enter_locked(address, options_.members_may_restart);
}

bool Node::is_own(const Address& address) const {
  return address.name == options_.name && address.pid == current_pid() && address.host == this_host();
}

/// Adds the member. If `may_restart`, or if the known member may, a process may take the place of one of the same name and
/// number that has ended.
Member& Node::enter_locked(const Address& address, bool may_restart) {
  for (const auto& known : members_) {
    if (known->next || known->number() != address.number) continue;
    if (known->address.is_same_process(address)) return *known;
    const bool has_ended = known->has_ended || known->has_exited() ||
                           (known->transport && known->transport->has_exited(*known));
    if ((may_restart || known->may_restart) && has_ended && known->name() == address.name)
      return begin_session(*known, address);
    throw_error(ErrorCode::invalid_argument, "member {} of the group is {}, and cannot be {} as well",
                address.number, known->name(), address.name);
  }
  if (address.number == options_.number && !is_own(address))
    throw_error(ErrorCode::invalid_argument,
                "member {} of the group is {}, this process, and cannot be {} (pid {}) as well",
                address.number, options_.name, address.name, address.pid);
  return add(std::make_unique<Member>(address));
}

Member& Node::next_session(Member& ended) {
  const LockGuard lock(members_mutex_);
  return begin_session(ended, ended.address);
}

/// Returns the session after one that has ended. Begins it with the process of that address if it has not begun.
Member& Node::begin_session(Member& ended, const Address& address) {
  if (!ended.next) ended.next = &add(std::make_unique<Member>(address, &ended));
  return *ended.next;
}

Member& Node::session_with(Member& known) {
  Member* const last = &known.last_session();
  const bool was_cut = last->has_ended && !last->has_left && last->transport &&
                       last->transport->reconnects() && !is_stopped();
  return was_cut ? next_session(*last) : *last;
}

bool Node::may_return(Member& member, Deadline deadline) {
  if (!member.is_gone()) return true;
  if (member.has_left || !member.transport || !member.transport->reconnects()) return false;
  try {
    connect(session_with(member), deadline);
    return true;
  } catch (const Error& error) {
    return error.code() != ErrorCode::peer_died || error.vendor_code() != ECONNREFUSED;
  }
}

Member& Node::add(std::unique_ptr<Member> member) {
  member->opened = std::make_shared<Call>(member->number(), kForever);
  if (member->number() == options_.number) connect_to_self(*member);
  else watch_over(*member);
  members_.push_back(std::move(member));
  auto list = std::make_unique<MemberList>(*list_.load());
  list->push_back(members_.back().get());
  list_ = list.get();
  stop_spinning_if_crowded(list->size());
  lists_.push_back(std::move(list));
  return *members_.back();
}

void Node::stop_spinning_if_crowded(std::size_t members) noexcept {
  if (spin_.is_chosen() || !is_crowd(members, usable_cpus())) return;
  is_crowded_ = true;
  waiter_.set_spin(std::chrono::nanoseconds{0});
}

void Node::connect_to_self(Member& me) {
  me.inbound = std::make_unique<Inbound>();
  me.outbound = std::make_unique<RingConnection>(me.inbound->sender_to_itself(), bell_);
  me.in = me.inbound.get();
  me.out = me.outbound.get();
}

void Node::watch_over(Member& member) {
  const auto at = std::ranges::find_if(
      transports_, [&](const auto& transport) { return transport->reaches(member.address); });
  member.transport = at->get();
  member.shares_memory = member.transport->shares_memory();
  if (member.transport->name() == "ucx") member.far_route = Route::ucx;
  member.exit = std::make_shared<std::atomic<bool>>(false);
  member.transport->watch(member);
}

/// Releases the lanes and the connection of a member that has ended, or of any member after stop(). Keeps messages that
/// a living member has not read. Returns false while a thread uses the lanes. REQUIRES: turn_.
bool Node::try_release(Member& member) {
  if (!member.opening.try_lock()) return false;  // a thread opens the member
  const LockGuard lock(member.opening, std::adopt_lock);
  const bool has_state = member.state && (is_stopped() || member.transport == ring_);
  if (!member.outbound && !member.inbound && !has_state) return true;
  member.out = nullptr;
  member.in = nullptr;
  if (member.senders.load() != 0 || lookers_.load() != 0) return false;
  if (member.outbound && member.has_ended) member.outbound->drop_sent();
  member.outbound.reset();
  member.inbound.reset();
  member.state.reset();
  if (member.transport == ring_) session_.leave(member.address.bell.fields().owner);
  return true;
}

/// Gives back what stop() leaves behind: lanes, door and connections. Threads leave the lanes soon, because they see that the
/// node has stopped. What a thread still uses at the deadline is released with the node.
void Node::release_all(Deadline deadline) {
  const LockGuard turn(turn_);
  MemberList left = *list_.load();
  for (;;) {
    std::erase_if(left, [this](Member* member) NO_THREAD_SAFETY_ANALYSIS { return try_release(*member); });
    if ((left.empty() && lookers_.load() == 0) || deadline.has_passed()) break;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  if (lookers_.load() == 0) ring_->release_door();
}

Member* Node::find(std::uint32_t number) {
  for (Member* member : *list_.load())
    if (member->number() == number) return &member->last_session();
  return nullptr;
}

/// Returns the latest living member of that name, or else the latest one: a program that died may have joined again under
/// its name with another number, perhaps before anyone has called it.
Member* Node::find(std::string_view name) {
  Member* latest = nullptr;
  const MemberList& members = *list_.load();
  for (auto at = members.rbegin(); at != members.rend(); ++at) {
    if ((*at)->name() != name) continue;
    Member& last = (*at)->last_session();
    if (!last.is_gone()) return &last;
    if (!latest) latest = &last;
  }
  return latest;
}

void Node::connect(Member& to, Deadline deadline) {
  if (to.out.load(std::memory_order_acquire)) return;
  while (!to.opened->is_done()) {
    check_can_send(to);
    to.transport->open(to, deadline);  // throws its own failure; tries again if another thread failed
    point("rpc.lane.greeted");
    serve_if_all_are_busy();
    if (!waiter_.wait(to.opened, std::min(deadline, Deadline::after(kConnectSlice))) &&
        deadline.left(kSleepSlice) == std::chrono::nanoseconds{0})
      throw_error(ErrorCode::timeout, "{} has not answered the greeting in time", to.name());
  }
  if (!to.out.load(std::memory_order_acquire)) {
    check_can_send(to);
    throw_ended_early(to);
  }
}

void Node::say_farewell(Member& to, Deadline deadline) noexcept {
  if (to.number() == options_.number || to.has_ended || to.has_exited()) return;
  try {
    const LaneGuard guard(to);
    if (Connection* const out = guard.lane()) {
      Message note;
      note.tag = static_cast<std::uint32_t>(Form::note);
      append_tail(note.data, NoteTail{NoteKind::farewell, 0});
      out->send(note, {}, deadline);
      out->ring_for_call();
    } else {
      to.transport->say_farewell(to, deadline);
    }
  } catch (const std::exception& error) {  // the member has ended, or is stopped
    log_debug(fmt::format("{} could not be told that this process leaves: {}", to.name(), error.what()));
  }
}

}  // namespace onecopy::rpc
