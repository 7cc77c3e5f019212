// SPDX-License-Identifier: Apache-2.0
#include "rpc/completion_waiter.h"

#include <algorithm>
#include <climits>
#include <utility>

#include "core/point.h"
#include "os/futex.h"

namespace onecopy::rpc {

using std::chrono::nanoseconds;

constexpr int kLooks = 64;  ///< the number of looks at the lanes between two looks at the clock

CompletionWaiter::CompletionWaiter(Doorbell& own, Lanes lanes, std::function<void(CallRef)> on_unwaited)
    : bell_(own), lanes_(std::move(lanes)), on_unwaited_(std::move(on_unwaited)) {}

/// An entry of a call in the list of followers, as long as a thread sleeps on the call.
class CompletionWaiter::Follower {
 public:
  Follower(CompletionWaiter& waiter, Call& call) : waiter_(waiter) {
    const LockGuard lock(waiter_.followers_mutex_);
    place_ = waiter_.followers_.insert(waiter_.followers_.end(), &call);
    waiter_.follower_count_.fetch_add(1);
  }
  Follower& operator=(Follower&&) = delete;
  ~Follower() {
    const LockGuard lock(waiter_.followers_mutex_);
    waiter_.followers_.erase(place_);
    waiter_.follower_count_.fetch_sub(1);
  }

 private:
  CompletionWaiter& waiter_;
  std::list<Call*>::iterator place_;
};

/// Increments wanted_ before it looks for a leader, because a leader that leaves the bell awake reads wanted_
/// afterwards: one of the two sees the other.
bool CompletionWaiter::want(Call& call) noexcept {
  wanted_.fetch_add(1);
  const std::uint32_t before = call.word_.fetch_or(Call::kIsWork);
  if ((before & (Call::kDone | Call::kIsWork)) != 0) wanted_.fetch_sub(1);
  if ((before & Call::kDone) != 0) return false;
  if (!is_led_.load()) end_watch();
  return true;
}

bool CompletionWaiter::wait(const CallRef& call, Deadline until) {
  if (call->is_done()) return true;
  until = std::min(until, Deadline::after(kSleepSlice));
  call->word_.fetch_or(Call::kWaited);
  try {
    if (!call->is_done()) wait_in_turn(*call, until);
  } catch (...) {  // out of memory
    stop_waiting(call);
    throw;
  }
  if (call->is_done()) return true;
  stop_waiting(call);
  return false;
}

void CompletionWaiter::wait_in_turn(Call& call, Deadline until) {
  if (try_lead() || follow(call, until)) lead(call, until);
  else if (!is_led_.load()) choose_leader();  // this thread may have been the next leader
}

/// Leaves the call to the next wait() or to a worker.
void CompletionWaiter::stop_waiting(const CallRef& call) {
  const std::uint32_t before = call->word_.fetch_and(~Call::kWaited);
  if ((before & Call::kDone) != 0 && (before & Call::kIsWork) != 0) on_unwaited_(call);
}

void CompletionWaiter::lead(Call& call, Deadline until) {
  bell_.answers.listen_here();
  bell_.answers.stay_awake();
  try {
    while (!watch(call, until)) sleep(call, until);
    look_after_leading(call);
  } catch (...) {  // out of memory: another thread or a worker looks at the lanes
    stop_leading();
    bell_.calls.ring();
    throw;
  }
  stop_leading();
}

/// Looks at the lanes until the call is done or `until` has passed. Returns false when the time to spin is over.
bool CompletionWaiter::watch(Call& call, Deadline until) {
  const std::int64_t budget = std::min(spin_ns_.load(std::memory_order_relaxed), call.spin_ns);
  TimePoint end{};
  for (;;) {
    for (int i = 0; i < kLooks && lanes_.watch(kLooks, &call); ++i) {
      if (call.is_done()) return true;
      lanes_.poll(&call);
    }
    if (call.is_done()) return true;
    const TimePoint now = std::chrono::steady_clock::now();
    if (end == TimePoint{}) end = now + nanoseconds(budget);
    if (call.waited_since_ns.load(std::memory_order_relaxed) == 0)
      call.waited_since_ns.store(now.time_since_epoch().count(), std::memory_order_relaxed);
    if (now >= until) return true;
    if (now >= end) return false;
    bell_.answers.listen_here();
  }
}

void CompletionWaiter::sleep(const Call& call, Deadline until) {
  const std::uint32_t armed = bell_.answers.arm();
  point("rpc.wait.armed");
  if (!call.is_done() && !lanes_.watch(1, nullptr)) bell_.answers.sleep(armed, until);
  bell_.answers.watch();
}

/// Leaves the bell awake if no call is wanted: answers then stay in the lanes until a thread waits. Otherwise makes the
/// bell say that no thread listens, so that later answers wake a worker, and handles the answers that came before.
void CompletionWaiter::look_after_leading(const Call& call) {
  const bool is_any_wanted = wanted_.load() != 0;
  if (is_any_wanted) bell_.answers.desert();
  point("rpc.wait.deserted");
  if (is_any_wanted && lanes_.watch(1, nullptr)) {
    lanes_.poll(&call);
    if (lanes_.watch(1, nullptr)) bell_.calls.ring();
  }
}

void CompletionWaiter::stop_leading() noexcept {
  is_led_.store(false);
  if (wanted_.load() != 0) end_watch();
  choose_leader();
}

/// Makes the bell say that no thread listens, and wakes a worker if messages came before, which have woken no thread. A
/// leader that has just begun is woken once too often.
void CompletionWaiter::end_watch() noexcept {
  if (bell_.answers.desert_if_awake() && lanes_.watch(1, nullptr)) bell_.calls.ring();
}

void CompletionWaiter::choose_leader() noexcept {
  if (follower_count_.load() == 0) return;
  const LockGuard lock(followers_mutex_);
  if (followers_.empty()) return;
  std::atomic<std::uint32_t>& word = followers_.front()->word_;
  word.fetch_or(Call::kLead);
  futex_wake(word, INT_MAX);
}

bool CompletionWaiter::follow(Call& call, Deadline until) {
  const Follower place(*this, call);
  for (;;) {
    if (try_lead()) {
      call.word_.fetch_and(~(Call::kLead | Call::kAsleep));
      return true;
    }
    const std::uint32_t seen = (call.word_.fetch_or(Call::kAsleep) | Call::kAsleep);
    if ((seen & Call::kDone) != 0) return false;
    if ((seen & Call::kLead) != 0) {
      call.word_.fetch_and(~Call::kLead);
      continue;
    }
    const nanoseconds left = until.left(kSleepSlice);
    if (left == nanoseconds{0}) return false;
    futex_wait(call.word_, seen, left);
  }
}

bool CompletionWaiter::complete(const CallRef& call, End end, Status status, Message&& answer,
                                const Call* mine) {
  if (!call->claim()) return false;
  call->end = end;
  call->status = status;
  call->answer = std::move(answer);
  const std::uint32_t before = call->word_.fetch_or(Call::kDone);
  if ((before & Call::kIsWork) != 0) wanted_.fetch_sub(1);
  if ((before & Call::kAsleep) != 0) futex_wake(call->word_, INT_MAX);
  if (call.get() == mine) return true;
  if ((before & Call::kWaited) != 0) {
    if (bell_.answers.state() == Bell::asleep) bell_.answers.ring_all();  // it may be the leader's call
  } else if ((before & Call::kIsWork) != 0) {
    on_unwaited_(call);
  }
  return true;
}

}  // namespace onecopy::rpc
