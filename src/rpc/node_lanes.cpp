// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <thread>
#include <utility>

#include "core/point.h"
#include "onecopy/core/error.h"
#include "os/log.h"
#include "rpc/node.h"
#include "rpc/ring/ring_transport.h"
#include "share/session.h"

/// The part of a node that reads the lanes and handles their messages.
namespace onecopy::rpc {
namespace {

using std::chrono::nanoseconds;
using std::chrono::steady_clock;

/// The max messages of one member that are handled before the next member's.
constexpr int kMessagesAtOnce = 64;

/// The time for which the thread that has the turn waits for the owner of a message's memory. An owner that runs usually
/// answers sooner; others are left to a worker.
constexpr std::chrono::milliseconds kBrief{2};

/// Returns whether a message that could not be taken stays in its lane and may be taken later.
bool is_passing(ErrorCode code) noexcept { return code == ErrorCode::timeout || is_shortage(code); }

}  // namespace

/// Returns whether a lane contains a message. Touches no lane after stop(). REQUIRES: this thread is counted in lookers_.
bool Node::has_message() const {
  if (is_stopped()) return false;
  for (const Member* member : *list_.load(std::memory_order_acquire)) {
    if (member->has_ended.load(std::memory_order_relaxed))
      continue;  // messages that it put after its farewell are not read
    const Inbound* const in = member->in.load(std::memory_order_acquire);
    if (((in && in->is_ready()) || member->has_exited()) && !member->is_held_back()) return true;
  }
  return ring_->has_newcomers();
}

bool Node::poll(const Call* mine, Work* own) {
  if (!turn_.try_lock()) {
    std::this_thread::yield();  // the thread that looks may wait for this processor
    return false;
  }
  const LockGuard turn(turn_, std::adopt_lock);
  if (is_stopped()) return false;
  own_ = own;
  struct ForgetOwn {
    Node& node;
    ~ForgetOwn() NO_THREAD_SAFETY_ANALYSIS { node.own_ = nullptr; }
  } const forget_own{*this};
  bool found = ring_->claim_newcomers();
  if (found) hand_out_newcomers();
  const MemberList& members = *list_.load();
  ++first_;
  for (std::size_t i = 0; i < members.size(); ++i)
    found = read(*members[(first_ + i) % members.size()], mine) || found;
  for (Member* member : members)
    if (member->has_ended) try_release(*member);
  return found;
}

/// Does nothing in a forked child, since the lanes belong to the parent.
void Node::look_once() {
  if (Session::existing() == &session_ && are_lanes_ready()) poll(nullptr);
}

/// Gives the greetings of newcomers to a worker, because a newcomer may be stopped and must not delay the messages of
/// others.
void Node::hand_out_newcomers() {
  Work work;
  work.kind = Work::Kind::service;
  hand_out(std::move(work));
}

/// Takes the next message of a lane. If its memory cannot be opened at once, leaves the lane to a worker: the sender may be
/// stopped, and must not delay the messages of others.
std::optional<Message> Node::take(Member& from, Inbound& in) {
  try {
    return in.try_take(kBrief);
  } catch (const Error& error) {
    if (!is_passing(error.code())) throw;
    hold_back(from);
    return {};
  }
}

void Node::hold_back(Member& from) {
  from.held_until_ns = INT64_MAX;
  try {
    Work work;
    work.kind = Work::Kind::service;
    work.from = &from;
    hand_out(std::move(work));
  } catch (...) {  // out of memory: the next look holds the lane back
    from.held_until_ns = 0;
    throw;
  }
}

/// Opens the first message of a lane that is held back, and lets the lane be read. If its memory cannot be opened, no
/// thread reads the lane for a while, which grows with each attempt up to a second.
void Node::open_first(Member& from) noexcept {
  constexpr std::chrono::milliseconds kPatience{100};
  std::optional<Message> first;
  std::int64_t until = 0;
  try {
    const Looker looker(lookers_);
    if (Inbound* const in = from.has_ended ? nullptr : from.in.load()) first = in->try_take(kPatience);
    from.pause = Member::kFirstPause;
  } catch (const std::exception& error) {  // any other error comes again when the lane is read
    const auto* const known = dynamic_cast<const Error*>(&error);
    if (!known || is_passing(known->code())) {
      if (from.pause == Member::kFirstPause)
        log_warning(fmt::format("the messages of {} wait until the first one can be opened: {}",
                                from.name(), error.what()));
      until = (steady_clock::now() + from.pause).time_since_epoch().count();
      from.pause = std::min(2 * from.pause, Member::kLastPause);
    }
  }
  point("rpc.lane.tried");
  const LockGuard turn(turn_);
  from.held_until_ns = until;
  try {
    if (first && !is_stopped()) read(from, nullptr, std::move(first));
  } catch (const std::exception& error) {  // out of memory
    log_warning(fmt::format("a message of {} was lost: {}", from.name(), error.what()));
  }
  if (are_lanes_ready()) (*bell_)->calls.ring();  // messages have come that woke no thread
}

/// Reads the messages of a lane, after `first`, which was taken before.
bool Node::read(Member& from, const Call* mine, std::optional<Message> first) {
  if ((from.before && !from.before->is_over) || from.is_held_back()) return false;
  Inbound* const in = from.in.load(std::memory_order_acquire);
  // Read before the lane: all that the member put before its exit is in the lane then.
  const bool has_exited = from.has_exited() && !from.has_ended;
  bool found = false, is_empty = !in || from.has_ended;
  try {
    for (int i = 0; i < kMessagesAtOnce && !is_empty; ++i) {
      std::optional<Message> message = first ? std::exchange(first, {}) : take(from, *in);
      is_empty = !message && !from.is_held_back();
      if (!message) break;
      found = true;
      handle(from, *std::move(message), mine);
    }
  } catch (const Error& error) {
    log_warning(fmt::format("a message of {} was not understood: {}", from.name(), error.what()));
    if (error.code() == ErrorCode::protocol) return end_damaged(from), true;
  }
  if (!has_exited || !is_empty) return found;
  point("rpc.death.drained");
  end(from);
  return true;
}

/// Looks for messages whose slot was overwritten, which ring no bell. Called after a thread has slept for a whole
/// slice.
void Node::look_for_damage() {
  if (!turn_.try_lock()) return;
  const LockGuard turn(turn_, std::adopt_lock);
  for (Member* const member : *list_.load()) {
    Inbound* const in = member->in.load(std::memory_order_acquire);
    if (!in || member->has_ended || member->is_held_back()) continue;
    try {
      in->check();
    } catch (const Error& error) {
      log_warning(fmt::format("the lane of {} is damaged: {}", member->name(), error.what()));
      end_damaged(*member);
    }
  }
}

/// Ends a member whose messages cannot be read, and tells it that this process reads no more of them.
void Node::end_damaged(Member& member) {
  constexpr std::chrono::milliseconds kPatience{100};
  say_farewell(member, Deadline::after(kPatience));
  end(member);
}

void Node::handle(Member& from, Message&& message, const Call* mine) {
  const Form form = form_of(message.tag);
  const bool is_in_order = (message.tag & kInOrder) != 0;
  if (form == Form::call) return handle_call(from, std::move(message), is_in_order);
  if (form == Form::answer) return handle_answer(from, std::move(message), is_in_order, mine);
  handle_note(from, std::move(message));
}

/// Returns the function that a call names. Limits the number of names, because each costs memory and comes from another
/// process.
FunctionEntry& Node::function_of(Member& from, const CallTail& tail, Bytes& data) {
  if (tail.function >= kMaxFunctions) refuse_message("has a function's number that is too large");
  if (tail.name_bytes != 0) {
    const std::string name = take_name(data, tail);
    if (from.functions.size() <= tail.function) from.functions.resize(tail.function + 1);
    FunctionEntry*& known = from.functions[tail.function];
    if (!known) known = &functions_.of(name);
    else if (known->name() != name) refuse_message("gives a function's number to another name");
  }
  if (tail.function >= from.functions.size() || !from.functions[tail.function])
    refuse_message("has a function's number that stands for no name");
  return *from.functions[tail.function];
}

void Node::handle_call(Member& from, Message&& message, bool is_in_order) {
  const CallTail tail = take_tail<CallTail>(message.data);
  Work work;
  work.kind = Work::Kind::call;
  work.is_in_order = is_in_order;
  work.from = &from;
  work.function = &function_of(from, tail, message.data);
  work.call = tail.call;
  work.context = take_context(message);
  if (tail.deadline != 0) work.deadline = TimePoint(nanoseconds(tail.deadline));
  work.message = std::move(message);
  Counters::count_alone(from.counters.served);
  point("rpc.call.taken");
  hand_out(std::move(work));
}

void Node::handle_answer(Member& from, Message&& message, bool is_in_order, const Call* mine) {
  const AnswerTail tail = take_tail<AnswerTail>(message.data);
  CallRef call = calls_.take(tail.call, from.number());
  if (!call)
    return;  // the call has timed out or was cancelled, or the member answers another member's call
  Counters::count_alone(from.counters.answers);
  point("rpc.answer.taken");
  if (!is_in_order) {
    waiter_.complete(call, End::answered, tail.status, std::move(message), mine);
    return;
  }
  Work work;
  work.kind = Work::Kind::answer;
  work.is_in_order = true;
  work.status = tail.status;
  work.from = &from;
  work.message = std::move(message);
  work.done = std::move(call);
  hand_out(std::move(work));
}

void Node::handle_note(Member& from, Message&& message) {
  const auto [kind, reserved] = take_tail<NoteTail>(message.data);
  if (kind == NoteKind::farewell) {
    from.has_left = true;
    return end(from);
  }
  if (kind != NoteKind::user) refuse_message("is an unknown note");
  Work work;
  work.kind = Work::Kind::note;
  work.is_in_order = true;
  work.from = &from;
  work.message = std::move(message);
  hand_out(std::move(work));
}

/// Ends a member whose lane has been read to the end. Sets has_ended before it fails the calls, so that a thread that
/// adds a call later sees has_ended.
void Node::end(Member& member) {
  if (member.has_ended.exchange(true)) return;
  point("rpc.death.noticed");
  if (member.transport) member.transport->close(member);
  fail(calls_.take_of(member.number(), member.session), End::member_ended);
  complete(member.opened, End::member_ended);
  Work work;
  work.kind = Work::Kind::member_ended;
  work.is_in_order = true;
  work.from = &member;
  hand_out(std::move(work));
  member.is_over = true;
}

void Node::fail(const std::vector<CallRef>& calls, End end) {
  for (const CallRef& call : calls) complete(call, end);
}

void Node::expire() { fail(calls_.take_late(steady_clock::now()), End::late); }

}  // namespace onecopy::rpc
