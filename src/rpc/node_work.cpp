// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <thread>
#include <utility>

#include "core/point.h"
#include "os/log.h"
#include "rpc/node.h"

/// The work of workers: they look at the lanes themselves, spin for a while, and sleep.
namespace onecopy::rpc {
namespace {

using std::chrono::steady_clock;

/// The number of idle workers that stay. Further workers, which a burst of calls has started, end after
/// kSlicesBeforeRetiring slices (kSleepSlice, a tenth of a second) without work.
constexpr int kIdleWorkers = 4;
constexpr int kSlicesBeforeRetiring = 10;

/// Increments a counter while the object exists.
class ScopedCount {
 public:
  explicit ScopedCount(std::atomic<int>& count) : count_(count) { count_.fetch_add(1); }
  ScopedCount& operator=(ScopedCount&&) = delete;
  ~ScopedCount() { count_.fetch_sub(1); }

 private:
  std::atomic<int>& count_;
};

}  // namespace

/// Gives work to a worker. A worker that looks at the lanes takes the first work itself. REQUIRES: turn_.
void Node::hand_out(Work&& work) {
  turn_.assert_held();
  const bool is_own =
      own_ && own_->kind == Work::Kind::none && (!work.is_in_order || work_.try_begin_order());
  if (is_own) *own_ = std::move(work);
  else give_out(std::move(work));
}

/// Queues the work, and wakes a worker if there is more work than there are workers that look for some.
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
  bool watches = false;
  int idle_slices = 0;
  for (;;) {
    leave_to_busy_workers();
    const bool has_looked = !work_.try_pop(work) && are_lanes_ready() && look_for_work(work);
    if (work.kind == Work::Kind::call && is_stopped()) work = {};
    if (work.kind != Work::Kind::none) break;
    if (is_stopped()) return end_watch(watches), idle_.fetch_sub(1), false;
    was_busy = was_busy || has_looked;
    if (has_looked || (was_busy && spin_for_work(watches))) continue;
    was_busy = false;
    idle_slices = sleep_for_work() ? 0 : idle_slices + 1;
    if (idle_slices >= kSlicesBeforeRetiring && try_retire()) return false;
  }
  begun_.fetch_add(1);
  idle_.fetch_sub(1);
  end_watch(watches);
  if (has_work() && !is_back_soon(work)) (*bell_)->calls.ring();
  return true;
}

/// Leaves work to busy workers that come back soon, if this is the last idle worker: before it does any work, it starts
/// another one, so a burst of short calls would start as many threads as there may be.
void Node::leave_to_busy_workers() const {
  constexpr std::chrono::microseconds kSoon{5};
  std::uint32_t ended = ended_.load();
  if (idle_.load() != 1 || begun_.load() == ended) return;
  TimePoint until = steady_clock::now() + kSoon;
  while (begun_.load() != ended && idle_.load() == 1 && has_work() && !is_stopped()) {
    std::this_thread::yield();
    const TimePoint now = steady_clock::now();
    const std::uint32_t seen = ended_.load();
    if (seen == ended && now >= until) return;
    if (seen != ended) until = now + kSoon;
    ended = seen;
  }
}

/// Leaves a message for which there is no memory in its lane: a later look finds the message.
bool Node::look_for_work(Work& work) {
  constexpr std::chrono::milliseconds kPause{10};
  try {
    return poll(nullptr, &work);
  } catch (const std::exception& error) {  // out of memory
    log_warning(fmt::format("messages of rpc wait until there is memory for them: {}", error.what()));
    std::this_thread::sleep_for(kPause);
    return false;
  }
}

/// Decrements idle_ if enough idle workers remain, and returns whether it did. A worker that takes work reads idle_
/// after that, in wants_worker(), so that it or the retiring worker sees that no idle worker is left.
bool Node::try_retire() noexcept {
  int idle = idle_.load();
  while (idle > kIdleWorkers)
    if (idle_.compare_exchange_weak(idle, idle - 1)) return true;
  return false;
}

/// Returns whether the work takes so little time that the same worker can take the next message. Another worker would
/// only compete with it.
bool Node::is_back_soon(const Work& work) const {
  return work.kind == Work::Kind::note && work_.ready() <= 1;
}

bool Node::try_help(Work& work) {
  work = {};
  if (!wants_worker()) return false;
  if (!work_.try_pop(work) && are_lanes_ready()) look_for_work(work);
  return work.kind != Work::Kind::none;
}

/// Looks for work for a while; returns whether there is some. Does not spin while another thread waits for a call and
/// looks at the lanes, nor if the last caller shares this processor, since that caller runs only while this thread
/// sleeps. `watches` says whether this thread is the one that spins, which it stays until it has taken what it found: a
/// peer looks at the bell right after its message, and would wake a sleeper for a message that this thread takes.
bool Node::spin_for_work(bool& watches) {
  const bool may_spin = spin_.is_any() && !is_crowded_.load(std::memory_order_relaxed) &&
                        !waiter_.has_leader() && !shares_processor_.load(std::memory_order_relaxed);
  if (!may_spin) return end_watch(watches), false;
  if (!watches && is_spinning_.exchange(true)) return false;
  watches = true;
  (*bell_)->calls.listen_here();
  (*bell_)->calls.watch();
  TimePoint end{};
  bool found = false, is_over = false;
  while (!found && !is_over) {
    found = watch_lanes(64, [&] { return work_.is_ready() || is_stopped(); }) || has_work();
    if (found) break;
    const TimePoint now = steady_clock::now();
    if (end == TimePoint{}) end = now + work_spin_.load(std::memory_order_relaxed);
    is_over = now >= end || waiter_.has_leader();
    (*bell_)->calls.listen_here();
  }
  if (!found) end_watch(watches);
  return found || has_work();
}

/// Makes peers ring again if this thread is the one that spins. Whoever calls this looks for work once more afterwards.
void Node::end_watch(bool& watches) noexcept {
  if (!std::exchange(watches, false)) return;
  is_spinning_.store(false);
  if (sleepers_.load() > 0) (*bell_)->calls.arm();
  else (*bell_)->calls.desert_if_awake();
}

/// Sleeps until there may be work. Returns false if this thread is not the first sleeper and has slept for a whole
/// slice. Does not arm the bell while a worker spins: that worker arms it when it stops.
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
    if (!has_work() && is_first) was_woken = bell.sleep(armed, deadline);
    else if (!has_work()) was_woken = bell.sleep_in_reserve(reserve, deadline);
  }
  if (is_first) {
    work_spin_.store(spin_.after_sleep(steady_clock::now() - since), std::memory_order_relaxed);
    has_first_sleeper_.store(false);
    if (!was_woken) look_for_damage();
  }
  expire();
  return was_woken || is_first;
}

}  // namespace onecopy::rpc
