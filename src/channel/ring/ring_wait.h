// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "channel/ring/ring_layout.h"
#include "os/deadline.h"

namespace onecopy {

/// The longest sleep, after which a waiter looks again, in case the process that should have woken it was killed.
inline constexpr std::chrono::milliseconds kSleepSlice{100};

/// Sleeps until the word changes, the deadline or the end of a slice. Returns false if a whole slice passed without a
/// wake.
bool sleep_on(const std::atomic<std::uint32_t>& word, std::uint32_t armed, Deadline deadline) noexcept;
inline bool sleep_on(const WaitWord& word, std::uint32_t armed, Deadline deadline) noexcept {
  return sleep_on(word.word, armed, deadline);
}

/// Tells the processor that this is a waiting loop.
inline void relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

/// The time that a waiter of this process may watch a word before it sleeps: longer after each success, half after each
/// failure, soon not at all. So a busy ring costs no system calls and an idle one no processor time.
///
/// A budget that has become zero is probed again after a short sleep, for as long as a woken partner needs to answer.
/// With a shorter probe, two processes that put each other to sleep would never find out that both are busy. After each
/// failed probe, the next one comes after twice as many short sleeps.
///
/// Thread safety: all members may be called concurrently; one thread spins at a time.
class SpinBudget {
 public:
  /// Returns true as soon as ready() does. Returns false when the budget or `most` is used up, at once if there is no
  /// budget.
  template <class Ready>
  bool spin(Ready&& ready, std::chrono::nanoseconds most = std::chrono::nanoseconds::max()) {
    const std::uint32_t budget = begin();
    if (budget == 0) return false;
    Turn turn{busy_};
    const bool success = watch(ready, std::min(std::chrono::nanoseconds(budget), most));
    end(budget, success);
    return success;
  }

  /// Notes how long the sleep after a failure was.
  void note_sleep(std::chrono::nanoseconds slept) noexcept {
    was_short_.store(slept < kShort, std::memory_order_relaxed);
  }

  /// Ends the turn to spin in a forked child, because the thread that had the turn belongs to the parent.
  void forget_turn() noexcept { busy_.store(false, std::memory_order_relaxed); }

  static constexpr std::uint32_t kMax = 50'000;     ///< ns, about one futex round trip
  static constexpr std::uint32_t kFirst = 4'000;    ///< ns, less is not worth it
  static constexpr std::uint32_t kProbe = 100'000;  ///< ns, the partner has to be woken first
  static constexpr std::uint32_t kRarest = 256;     ///< the max number of short sleeps between two probes
  static constexpr std::chrono::microseconds kShort{500};
  static_assert(kProbe > kMax, "end() knows a probe by its budget");

 private:
  struct Turn {
    std::atomic<bool>& busy;
    ~Turn() { busy.store(false, std::memory_order_relaxed); }
  };

  /// Returns the budget in ns and takes the turn to spin; 0 if another thread has the turn or there is no budget.
  std::uint32_t begin() noexcept;
  void end(std::uint32_t budget, bool success) noexcept;

  template <class Ready>
  static bool watch(Ready& ready, std::chrono::nanoseconds budget) {
    TimePoint end{};
    do {
      for (int i = 0; i < 64; ++i) {
        if (ready()) return true;
        relax();
      }
      const TimePoint now = std::chrono::steady_clock::now();
      if (end == TimePoint{}) end = now + budget;
      if (now >= end) return false;
    } while (true);
  }

  std::atomic<std::uint32_t> budget_{kFirst};
  std::atomic<std::uint32_t> refused_{0};      ///< short sleeps since the last probe
  std::atomic<std::uint32_t> probe_every_{1};  ///< short sleeps between two probes
  std::atomic<bool> was_short_{false};
  std::atomic<bool> busy_{false};
};

}  // namespace onecopy
