// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mutex>

namespace onecopy {

/// Which captures of streams are under way in this process, as far as their makers say so. A point after all work of a
/// context spoils every capture in it, whatever the mode and whichever thread (seen on an H100), so none is made then.
///
/// Thread safety: all members may be called concurrently. A capture may begin in one thread and end in another. The
/// lock is held while a point is made, which takes microseconds. A forked child has no captures.
class CaptureGate {
 public:
  static CaptureGate& get();

  /// Before the capture begins. Waits for a point that is just being made.
  void begin() noexcept;
  /// After its end, however it ended.
  void end() noexcept;

  /// Calls `f` while no capture is under way, and none begins before it returns. False when there is one.
  template <class F>
  bool try_between(F&& f) {
    const std::lock_guard lock(mutex_);
    if (captures_ != 0) return false;
    f();
    return true;
  }

 private:
  std::mutex mutex_;
  unsigned captures_ = 0;
};

}  // namespace onecopy
