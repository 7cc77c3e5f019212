// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>

#include "device/graphs.h"
#include "onecopy/core/device.h"

namespace onecopy::python {

/// The lock of an arena, which keeps replays and captures from overlapping, on threads and on the device (I2). On a
/// device, each stream also waits for the stream that used the arena last.
///
/// Thread safety: any thread may call lock(), try_lock() and unlock(); the other members need the lock held.
class ArenaLock {
 public:
  /// Sets the device of the graphs. Called once. Throws errors of the driver.
  void bind(Device device);

  /// Acquires the lock. A thread that holds it may acquire it again.
  void lock() { mutex_.lock(); }
  bool try_lock() { return mutex_.try_lock(); }
  void unlock() { mutex_.unlock(); }

  /// Makes the stream wait for the work of the last stream.
  void enter(Stream stream);
  /// Records all work in the stream, so that the next stream waits for it.
  void leave(Stream stream);
  /// Blocks the host until the work of the last stream is done.
  void wait();

  /// Returns whether graphs may run without a check of the arena: it is not parked, and has no leases.
  bool is_open() const noexcept { return is_running_ && leases_ == 0; }
  void set_running(bool is_running) noexcept { is_running_ = is_running; }
  /// Sets the number of outputs in the arena that a replay would overwrite.
  void set_leases(std::size_t leases) noexcept { leases_ = leases; }

 private:
  std::recursive_mutex mutex_;
  std::unique_ptr<StreamMark> mark_;
  std::optional<void*> last_;  ///< the stream of the last holder
  bool is_running_ = true;
  std::size_t leases_ = 0;
};

}  // namespace onecopy::python
