// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>

namespace onecopy {

/// A schedule for polling a slow source: each pause is twice as long as the one before, from 20 ms up to 10 s. Thread
/// safety: used by one thread.
class Backoff {
 public:
  bool is_due() const noexcept { return Clock::now() >= next_; }
  /// Starts the next pause. REQUIRES: called at each look.
  void looked() noexcept {
    next_ = Clock::now() + pause_;
    pause_ = std::min<Clock::duration>(2 * pause_, kLongest);
  }
  /// Makes the next look due now and starts again with the shortest pause.
  void hurry() noexcept { *this = {}; }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kShortest{20};
  static constexpr std::chrono::milliseconds kLongest{10'000};

  Clock::time_point next_{};
  Clock::duration pause_ = kShortest;
};

}  // namespace onecopy
