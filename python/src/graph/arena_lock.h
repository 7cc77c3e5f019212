// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>

#include "device/graphs.h"
#include "onecopy/core/device.h"

namespace onecopy::python {

/// The lock of an arena: replays and captures of one arena never overlap, neither on threads nor on the device (I2).
/// On the host it is a lock. On a device each stream waits for the last one that was there, too.
///
/// Thread safety: lock(), try_lock() and unlock() by any thread; the rest with the lock held.
class ArenaLock {
 public:
  ArenaLock() = default;
  ArenaLock(const ArenaLock&) = delete;
  ArenaLock& operator=(const ArenaLock&) = delete;

  /// Its graphs are on this device. Once. Throws the driver's refusals.
  void bind(Device device);

  /// A thread may lock it again while it has it.
  void lock() { mutex_.lock(); }
  bool try_lock() { return mutex_.try_lock(); }
  void unlock() { mutex_.unlock(); }

  /// The stream goes on after the last holder's work.
  void enter(Stream stream);
  /// The next holder's work comes after all work in the stream.
  void leave(Stream stream);
  /// The host waits for the last holder's work.
  void wait();

  /// May graphs run without a look at the arena first?
  bool is_open() const noexcept { return is_running_ && leases_ == 0; }
  void set_running(bool is_running) noexcept { is_running_ = is_running; }
  /// How many outputs lie in the arena that a replay would overwrite.
  void set_leases(std::size_t leases) noexcept { leases_ = leases; }

 private:
  std::recursive_mutex mutex_;
  std::unique_ptr<StreamMark> mark_;
  std::optional<void*> last_;  ///< the stream of the last holder
  bool is_running_ = true;
  std::size_t leases_ = 0;
};

}  // namespace onecopy::python
