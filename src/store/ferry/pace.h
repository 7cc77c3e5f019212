// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

#include "os/mutex.h"

namespace onecopy::store::ferry {

/// Limits the bytes that several threads send in a second, all together. Each thread calls wait_for() before it sends a piece.
/// Thread safety: all members may be called concurrently.
class Pace {
 public:
  /// `rate`: bytes per second; 0 for no limit.
  explicit Pace(std::uint64_t rate) noexcept : rate_(rate) {}

  /// Returns the max bytes of a piece: a twentieth of a second, or about a record of TLS.
  std::size_t piece() const noexcept {
    constexpr std::uint64_t kMin = 16 << 10, kParts = 20;
    return rate_ == 0 ? SIZE_MAX : std::max(kMin, rate_ / kParts);
  }
  /// Waits until the bytes may be sent. REQUIRES: they are at most a piece.
  void wait_for(std::size_t bytes) {
    if (rate_ == 0) return;
    const std::chrono::duration<double> cost(static_cast<double>(bytes) / static_cast<double>(rate_));
    Clock::time_point at;
    {
      const LockGuard lock(mutex_);
      at = std::max(next_, Clock::now());
      next_ = at + std::chrono::duration_cast<Clock::duration>(cost);
    }
    std::this_thread::sleep_until(at);
  }

 private:
  using Clock = std::chrono::steady_clock;

  const std::uint64_t rate_;
  Mutex mutex_;
  Clock::time_point next_ GUARDED_BY(mutex_){};
};

}  // namespace onecopy::store::ferry
