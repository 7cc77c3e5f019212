// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "os/mutex.h"

namespace onecopy {

/// A record of the stream captures in progress in this process, as far as their makers report them. A point after all
/// work of a context spoils every capture in it, in any mode and by any thread (seen on an H100), so none is created
/// during a capture.
///
/// Thread safety: all members may be called concurrently. A capture may begin in one thread and end in another. The
/// lock is held while a point is created, which takes microseconds. A forked child has no captures.
class CaptureGate {
 public:
  static CaptureGate& get();

  /// Announces a capture before it begins. Waits while another thread creates a point.
  void begin() noexcept;
  /// Reports that a capture has ended, in success or failure.
  void end() noexcept;

  /// Calls `f` while no capture is in progress, and keeps captures from beginning until it returns. Returns false
  /// without a call if there is a capture.
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
