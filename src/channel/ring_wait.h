// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "channel/ring_layout.h"

namespace onecopy {

/// When a waiting call gives up.
using TimePoint = std::chrono::steady_clock::time_point;
inline constexpr TimePoint kForever = TimePoint::max();
/// Try once, do not wait.
inline constexpr TimePoint kNow = TimePoint::min();

/// `timeout` from now, without overflow.
TimePoint deadline_after(std::chrono::nanoseconds timeout) noexcept;
/// What is left until `deadline`, at most `most`; zero when it has passed.
std::chrono::nanoseconds time_left(TimePoint deadline, std::chrono::nanoseconds most) noexcept;

/// No sleep is longer: whatever a killed process should have told us is noticed after it.
inline constexpr std::chrono::milliseconds kSleepSlice{100};

/// Sleeps until the word changes, the deadline or the end of a slice. False when a whole slice passed
/// without a wake.
bool sleep_on(const WaitWord& word, std::uint32_t armed, TimePoint deadline) noexcept;

/// Tells the processor that this is a waiting loop.
inline void relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

/// How long a waiter of this process may watch a word before it sleeps: longer after each success,
/// half after each failure, soon not at all. So a busy ring costs no system calls and an idle one no
/// processor time. What has given up tries again now and then, for as long as a woken partner needs to
/// answer: with less it would never find out that the ring has become busy.
/// Thread safety: all members may be called concurrently; one thread spins at a time.
class SpinBudget {
 public:
  /// True as soon as ready() is; false when the budget is used up, at once when there is none.
  template <class Ready>
  bool spin(Ready&& ready) {
    const std::uint32_t budget = begin();
    if (budget == 0) return false;
    Turn turn{busy_};
    const bool success = watch(ready, std::chrono::nanoseconds(budget));
    end(budget, success);
    return success;
  }

  static constexpr std::uint32_t kMost = 50'000;     ///< ns, about one futex round trip
  static constexpr std::uint32_t kFirst = 4'000;     ///< ns, less is not worth it
  static constexpr std::uint32_t kProbeEvery = 256;  ///< waits: of them one is a probe of kMost

 private:
  struct Turn {
    std::atomic<bool>& busy;
    ~Turn() { busy.store(false, std::memory_order_relaxed); }
  };

  /// The budget in ns and the turn, or 0.
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
  std::atomic<std::uint32_t> refused_{0};
  std::atomic<bool> busy_{false};
};

}  // namespace onecopy
