// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <thread>
#include <utility>

#include "core/point.h"
#include "onecopy/core/error.h"
#include "os/log.h"
#include "rpc/node.h"

/// How a thread looks at the lanes, and how workers get work.
namespace onecopy::rpc {
namespace {

using std::chrono::nanoseconds;
using std::chrono::steady_clock;

/// Messages of one member before the next one's turn.
constexpr int kMessagesAtOnce = 64;

/// The idle workers that stay; others end once they have slept for so many slices. A burst leaves no threads behind.
constexpr int kIdleWorkers = 4;
constexpr int kSlicesBeforeRetiring = 10;

class ScopedCount {
 public:
  explicit ScopedCount(std::atomic<int>& count) : count_(count) { count_.fetch_add(1); }
  ScopedCount(const ScopedCount&) = delete;
  ScopedCount& operator=(const ScopedCount&) = delete;
  ~ScopedCount() { count_.fetch_sub(1); }

 private:
  std::atomic<int>& count_;
};

}  // namespace

bool Node::are_lanes_ready() const {
  const ScopedCount looker(lookers_);  // before the looks at has_ended: a lane goes when there is none
  for (const Member* member : *list_.load(std::memory_order_acquire)) {
    if (member->has_ended.load(std::memory_order_relaxed))
      continue;  // what it put after its farewell stays
    const Inbound* const in = member->in.load(std::memory_order_acquire);
    if ((in && in->is_ready()) || member->has_exited()) return true;
  }
  return !is_door_read_.load(std::memory_order_relaxed) && door_.is_ready();
}

bool Node::look(const Call* mine, Work* own) {
  if (!turn_.try_lock()) {
    std::this_thread::yield();  // the one that looks may wait for this processor
    return false;
  }
  const LockGuard turn(turn_, std::adopt_lock);
  if (is_stopped()) return false;
  own_ = own;
  struct ForgetOwn {
    Node& node;
    ~ForgetOwn() NO_THREAD_SAFETY_ANALYSIS { node.own_ = nullptr; }
  } const forget_own{*this};
  bool found = door_.is_ready() && !is_door_read_.exchange(true);
  if (found) hand_out_door();
  const MemberList& members = *list_.load();
  ++first_;
  for (std::size_t i = 0; i < members.size(); ++i)
    found = read(*members[(first_ + i) % members.size()], mine) || found;
  for (Member* member : members)
    if (member->has_ended) release_lanes(*member);
  return found;
}

/// A worker reads the door: the sender of a greeting may be stopped, and must not hold up the messages of others.
void Node::hand_out_door() {
  Work work;
  work.kind = Work::Kind::greeting;
  hand_out(std::move(work));
}

bool Node::read(Member& from, const Call* mine) {
  Inbound* const in = from.in.load(std::memory_order_acquire);
  // Before the lane: what it had put when it exited is there from now on.
  const bool has_exited = from.has_exited() && !from.has_ended;
  bool found = false, is_empty = !in || from.has_ended;
  try {
    for (int i = 0; i < kMessagesAtOnce && !is_empty; ++i) {
      std::optional<Message> message = in->try_take();
      is_empty = !message;
      if (!message) break;
      found = true;
      handle(from, *std::move(message), mine);
    }
  } catch (const Error& error) {
    log_warning(fmt::format("a message of {} was not understood: {}", from.name(), error.what()));
    if (error.code() == ErrorCode::protocol) return end(from), true;  // its lane is damaged for good
  }
  if (!has_exited || !is_empty) return found;
  point("rpc.death.drained");
  end(from);
  return true;
}

void Node::handle(Member& from, Message&& message, const Call* mine) {
  const Form form = form_of(message.tag);
  const bool is_in_order = (message.tag & kInOrder) != 0;
  if (form == Form::call) return handle_call(from, std::move(message), is_in_order);
  if (form == Form::answer) return handle_answer(from, std::move(message), is_in_order, mine);
  handle_note(from, std::move(message));
}

namespace {

Name& name_of(Member& from, const CallTail& tail, Bytes& data) {
  if (tail.function >= kMostFunctions) refuse_message("has a function's number that is too large");
  if (tail.name_bytes != 0) {
    std::string name = take_name(data, tail);
    if (from.names.size() <= tail.function) from.names.resize(tail.function + 1);
    auto& known = from.names[tail.function];
    if (!known) known = std::make_unique<Name>(std::move(name));
    else if (known->text != name) refuse_message("gives a function's number to another name");
  }
  if (tail.function >= from.names.size() || !from.names[tail.function])
    refuse_message("has a function's number that stands for no name");
  return *from.names[tail.function];
}

}  // namespace

void Node::handle_call(Member& from, Message&& message, bool is_in_order) {
  const CallTail tail = take_tail<CallTail>(message.data);
  Work work;
  work.kind = Work::Kind::call;
  work.is_in_order = is_in_order;
  work.from = &from;
  work.function = &name_of(from, tail, message.data);
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
  CallRef call = calls_.take(tail.call);
  if (!call || call->member() != from.number()) return;  // late: it has timed out, or was cancelled
  Counters::count_alone(from.counters.answers);
  point("rpc.answer.taken");
  if (!is_in_order) {
    waits_.complete(call, End::answered, tail.status, std::move(message), mine);
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

/// Behind all that the member had put. First has_ended: a thread that adds a call from here on sees it.
void Node::end(Member& member) {
  if (member.has_ended.exchange(true)) return;
  stop_watching(member);
  close_links(member);
  fail(calls_.take_of(member.number()), End::member_ended);
  complete(member.opened, End::member_ended);
  Work work;
  work.kind = Work::Kind::member_ended;
  work.is_in_order = true;
  work.from = &member;
  hand_out(std::move(work));
}

void Node::fail(const std::vector<CallRef>& calls, End end) {
  for (const CallRef& call : calls) complete(call, end);
}

void Node::expire() { fail(calls_.take_late(steady_clock::now()), End::late); }

/// REQUIRES: turn_. The worker that looks takes the first work itself.
void Node::hand_out(Work&& work) {
  turn_.assert_held();
  const bool is_own =
      own_ && own_->kind == Work::Kind::none && (!work.is_in_order || work_.try_begin_order());
  if (is_own) *own_ = std::move(work);
  else give_out(std::move(work));
}

/// Rings when there is more work than there are workers that look for some.
void Node::give_out(Work&& work) {
  work_.push(std::move(work));
  const int looking = idle_.load() - sleepers_.load();
  if (static_cast<int>(work_.ready()) > looking) (*bell_)->calls.ring();
}

void Node::end_order(bool asks_next) noexcept {
  work_.end_order();
  if (work_.ready() > (asks_next ? 1U : 0U)) (*bell_)->calls.ring();
}

bool Node::next(Work& work) {
  idle_.fetch_add(1);
  work = {};
  bool was_busy = true;  // the next message may be on its way
  int idle_slices = 0;
  for (;;) {
    const bool has_looked = !work_.try_pop(work) && are_lanes_ready() && look_for_work(work);
    if (work.kind == Work::Kind::call && is_stopped()) work = {};
    if (work.kind != Work::Kind::none) break;
    if (is_stopped()) return idle_.fetch_sub(1), false;
    was_busy = was_busy || has_looked;
    if (has_looked || (was_busy && spin_for_work())) continue;
    was_busy = false;
    idle_slices = sleep_for_work() ? 0 : idle_slices + 1;
    if (idle_slices >= kSlicesBeforeRetiring && try_retire()) return false;
  }
  idle_.fetch_sub(1);
  if (has_work() && !is_back_soon(work)) (*bell_)->calls.ring();
  return true;
}

/// Leaves a message for which there is no memory in its lane: a later look finds the message.
bool Node::look_for_work(Work& work) {
  constexpr std::chrono::milliseconds kPause{10};
  try {
    return look(nullptr, &work);
  } catch (const std::exception& error) {  // out of memory
    log_warning(fmt::format("messages of rpc wait until there is memory for them: {}", error.what()));
    std::this_thread::sleep_for(kPause);
    return false;
  }
}

/// The count goes down before a worker that takes work looks at it: so one of the two sees that none is left.
bool Node::try_retire() noexcept {
  int idle = idle_.load();
  while (idle > kIdleWorkers)
    if (idle_.compare_exchange_weak(idle, idle - 1)) return true;
  return false;
}

/// A note takes no time: its worker takes the next message, too. Another one would be in its way.
bool Node::is_back_soon(const Work& work) const {
  return work.kind == Work::Kind::note && work_.ready() <= 1;
}

bool Node::try_help(Work& work) {
  work = {};
  return idle_.load() == 0 && !is_stopped() && work_.try_pop(work);
}

/// While a thread waits for a call, that one looks at the lanes. A caller on this processor gets to run only when this
/// thread sleeps.
bool Node::spin_for_work() {
  if (!spin_.is_any() || waits_.has_leader() || shares_processor_.load(std::memory_order_relaxed))
    return false;
  if (is_spinning_.exchange(true)) return false;
  (*bell_)->calls.listen_here();
  const std::uint32_t watched = (*bell_)->calls.watch();
  TimePoint end{};
  bool found = false, is_over = false;
  while (!found && !is_over) {
    for (int i = 0; i < 64 && !found; ++i) {
      found = has_work();
      if (!found) relax();
    }
    if (found) break;
    const TimePoint now = steady_clock::now();
    if (end == TimePoint{}) end = now + work_spin_.load(std::memory_order_relaxed);
    is_over = now >= end || waits_.has_leader();
    (*bell_)->calls.listen_here();
  }
  is_spinning_.store(false);
  if (sleepers_.load() > 0) (*bell_)->calls.arm();
  else (*bell_)->calls.desert_from(watched);
  return found || has_work();
}

/// Returns false when a thread beside the first sleeper has slept for a whole slice. While a worker spins the word is not armed:
/// the spinning worker arms it when it stops.
bool Node::sleep_for_work() {
  Bell& bell = (*bell_)->calls;
  const bool is_first = !has_first_sleeper_.exchange(true);
  const TimePoint since = steady_clock::now();
  bool was_woken = true;
  {
    const ScopedCount sleeper(sleepers_);
    const std::uint32_t reserve = bell.reserve();
    const std::uint32_t armed = is_spinning_.load() ? bell.value() : bell.arm();
    bell.listen_here();
    point("rpc.work.armed");
    const Deadline deadline = calls_.next_deadline();
    if (!has_work() && is_first) bell.sleep(armed, deadline);
    else if (!has_work()) was_woken = bell.sleep_in_reserve(reserve, deadline);
  }
  if (is_first) {
    work_spin_.store(spin_.after_sleep(steady_clock::now() - since), std::memory_order_relaxed);
    has_first_sleeper_.store(false);
  }
  expire();
  return was_woken;
}

}  // namespace onecopy::rpc
