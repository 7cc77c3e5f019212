// SPDX-License-Identifier: Apache-2.0
#include "channel/ring/doorbell.h"

#include <climits>

#include "core/point.h"
#include "os/futex.h"
#include "os/process.h"

namespace onecopy {

namespace {

bool sleep_on_word(const std::atomic<std::uint32_t>& word, std::uint32_t seen, Deadline deadline) noexcept {
  const std::chrono::nanoseconds slice = deadline.left(kSleepSlice);
  if (slice == std::chrono::nanoseconds{0}) return true;
  return futex_wait(word, seen, slice) || slice < kSleepSlice;
}

}  // namespace

std::uint32_t Bell::set(State state) noexcept {
  std::uint32_t seen = word_.load();
  std::uint32_t next;
  do {
    next = (seen & ~kStates) + kStep + state;
  } while (!word_.compare_exchange_weak(seen, next));
  return next;
}

/// Stays armed while threads slept: more of them may. A ring that found none disarms, unless a thread has armed since.
void Bell::wake(std::uint32_t seen) noexcept {
  do {
    if (state_of(seen) != asleep) return;
  } while (!word_.compare_exchange_weak(seen, seen + kStep));
  point("doorbell.marked");
  seen += kStep;
  if (futex_wake(word_, 1) > 0) return;
  reserve_.fetch_add(1);
  if (futex_wake(reserve_, 1) == 0) word_.compare_exchange_strong(seen, (seen & ~kStates) + kStep);
}

void Bell::listen_here() noexcept {
  const std::int32_t here = current_cpu() + 1;
  if (processor_.load(std::memory_order_relaxed) != here) processor_.store(here, std::memory_order_relaxed);
}

bool Bell::shares_processor() const noexcept {
  return processor_.load(std::memory_order_relaxed) == current_cpu() + 1;
}

void Bell::ring_all() noexcept {
  word_.fetch_add(kStep);
  futex_wake(word_, INT_MAX);
  reserve_.fetch_add(1);
  futex_wake(reserve_, INT_MAX);
}

bool Bell::sleep(std::uint32_t armed, Deadline deadline) const noexcept {
  return sleep_on_word(word_, armed, deadline);
}

bool Bell::sleep_in_reserve(std::uint32_t seen, Deadline deadline) const noexcept {
  return sleep_on_word(reserve_, seen, deadline);
}

}  // namespace onecopy
