// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>

#include "os/mutex.h"

namespace onecopy::python {

/// The number of calls of other members that are being served.
/// Thread safety: all members may be called concurrently.
class ServedCalls {
 public:
  void begin() noexcept { count_.fetch_add(1); }
  /// Ends a call. Changes the count before it reads the number of waiters, so that no waiter misses the change.
  void end() noexcept {
    count_.fetch_sub(1);
    if (waiters_.load() == 0) return;
    const LockGuard lock(mutex_);
    has_ended_.notify_all();
  }
  int count() const noexcept { return count_.load(); }
  /// Waits until at most `most` calls are left. Returns false at the deadline.
  bool wait_for(int most, std::chrono::steady_clock::time_point deadline) {
    const LockGuard lock(mutex_);
    waiters_.fetch_add(1);
    while (count() > most && has_ended_.wait_until(mutex_, deadline)) continue;
    waiters_.fetch_sub(1);
    return count() <= most;
  }

 private:
  std::atomic<int> count_{0}, waiters_{0};
  Mutex mutex_;
  Condition has_ended_;
};

/// Counts a call for its own lifetime.
class ServedCall {
 public:
  explicit ServedCall(ServedCalls& calls) noexcept : calls_(calls) { calls_.begin(); }
  ServedCall& operator=(ServedCall&&) = delete;
  ~ServedCall() { calls_.end(); }

 private:
  ServedCalls& calls_;
};

}  // namespace onecopy::python
