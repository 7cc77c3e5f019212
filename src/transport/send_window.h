// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>

#include "channel/ring/ring_wait.h"
#include "os/deadline.h"
#include "os/mutex.h"

namespace onecopy::transport {

/// The threads that wait until a connection to another host has room for their messages.
/// Thread safety: all members may be called concurrently.
class SendWindow {
 public:
  /// The bytes under way, of small and of large messages each, above which a sender waits.
  static constexpr std::uint64_t kMaxBytes = 16 << 20;

  /// Waits until `has_room` returns true. Returns false if there is no room by the deadline.
  template <class HasRoom>
  bool wait(const HasRoom& has_room, Deadline until) {
    if (has_room()) return true;
    const LockGuard lock(mutex_);
    waiters_.fetch_add(1);
    while (!has_room() && !until.has_passed())
      has_changed_.wait_until(mutex_, std::chrono::steady_clock::now() + until.left(kSleepSlice));
    waiters_.fetch_sub(1);
    return has_room();
  }
  /// Makes the waiting threads call `has_room` again.
  void tell_waiters() noexcept {
    if (waiters_.load() == 0) return;
    const LockGuard lock(mutex_);
    has_changed_.notify_all();
  }
  int waiters() const noexcept { return waiters_.load(); }

 private:
  Mutex mutex_;
  Condition has_changed_;
  std::atomic<int> waiters_{0};
};

}  // namespace onecopy::transport
