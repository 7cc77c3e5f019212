// SPDX-License-Identifier: Apache-2.0
#include "channel/ring/ring_wait.h"

#include <climits>

#include "core/point.h"
#include "os/futex.h"

namespace onecopy {

using std::chrono::nanoseconds;

bool sleep_on(const std::atomic<std::uint32_t>& word, std::uint32_t armed, Deadline deadline) noexcept {
  const nanoseconds slice = deadline.left(kSleepSlice);
  if (slice == nanoseconds{0}) return true;
  return futex_wait(word, armed, slice) || slice < kSleepSlice;
}

std::uint32_t WaitWord::set(State state) noexcept {
  std::uint32_t seen = word.load();
  std::uint32_t next;
  do {
    next = (seen & ~kStates) + kStep + state;
  } while (!word.compare_exchange_weak(seen, next));
  return next;
}

std::uint32_t WaitWord::try_wake() noexcept {
  std::uint32_t seen = word.load();
  do {
    if (state_of(seen) != asleep) return 0;
  } while (!word.compare_exchange_weak(seen, seen + kStep));
  point("ring.wake.marked");
  return futex_wake(word, 1) > 0 ? 0 : seen + kStep;
}

/// Wakes one sleeper, or disarms the word if there is none. If a thread arms the word after try_wake(), its value
/// differs and the word stays armed.
void WaitWord::wake_one() noexcept {
  if (const std::uint32_t marked = try_wake()) desert_from(marked);
  point("ring.wake.woken");
}

void WaitWord::notify_all() noexcept {
  word.fetch_add(kStep);
  futex_wake(word, INT_MAX);
}

std::uint32_t SpinBudget::begin() noexcept {
  std::uint32_t budget = budget_.load(std::memory_order_relaxed);
  if (budget == 0) {
    if (!was_short_.load(std::memory_order_relaxed)) return 0;
    const std::uint32_t refused = refused_.fetch_add(1, std::memory_order_relaxed) + 1;
    if (refused < probe_every_.load(std::memory_order_relaxed)) return 0;
    budget = kProbe;
  }
  return busy_.exchange(true, std::memory_order_relaxed) ? 0 : budget;
}

void SpinBudget::end(std::uint32_t budget, bool success) noexcept {
  std::uint32_t every = 1;
  std::uint32_t next = std::min(kMax, budget * 2);
  if (!success) {
    every = probe_every_.load(std::memory_order_relaxed);
    if (budget == kProbe) every = std::min(kRarest, every * 2);
    next = budget == kProbe || budget / 2 < kFirst ? 0 : budget / 2;
  }
  refused_.store(0, std::memory_order_relaxed);
  probe_every_.store(every, std::memory_order_relaxed);
  budget_.store(next, std::memory_order_relaxed);
}

}  // namespace onecopy
