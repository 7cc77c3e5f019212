// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "os/mutex.h"

namespace onecopy {

/// The captures of streams that are under way in this process, as far as their makers report them. A point after all
/// work of a context spoils every capture in it, in any mode and by any thread (seen on an H100). Therefore none is
/// made during a capture.
///
/// Thread safety: all members may be called concurrently. A capture may begin in one thread and end in another. The
/// lock is held while a point is made, which takes microseconds. A forked child has no captures.
class CaptureGate {
 public:
  static CaptureGate& get();

  /// Before the capture begins. Waits for a point that another thread is making.
  void begin() noexcept;
  /// After its end, however it ended.
  void end() noexcept;

  /// Calls `f` while no capture is under way; none begins before it returns. Returns false if there is a capture.
  template <class F>
  bool try_between(F&& f) {
    const LockGuard lock(mutex_);
    if (captures_ != 0) return false;
    f();
    return true;
  }

 private:
  Mutex mutex_;
  unsigned captures_ GUARDED_BY(mutex_) = 0;
};

}  // namespace onecopy
