// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <vector>

#include "onecopy/core/device.h"
#include "os/mutex.h"

namespace onecopy {

/// The devices whose memory this process has shared or opened. The set only grows.
///
/// Thread safety: all members may be called concurrently. A forked child starts with a new, empty object.
class UsedDevices {
 public:
  /// Adds a device. Returns whether it is new.
  bool note(Device device) {
    if (last_.load(std::memory_order_relaxed) == packed(device)) return false;
    const LockGuard lock(mutex_);
    last_.store(packed(device), std::memory_order_relaxed);
    for (const Device known : devices_)
      if (known == device) return false;
    devices_.push_back(device);
    count_.store(devices_.size(), std::memory_order_release);
    return true;
  }
  bool empty() const noexcept { return count_.load(std::memory_order_acquire) == 0; }
  std::vector<Device> list() const {
    const LockGuard lock(mutex_);
    return devices_;
  }

 private:
  /// Returns a number for the device; 0 is the CPU, which is never noted.
  static std::uint32_t packed(Device device) noexcept {
    return static_cast<std::uint32_t>(device.type) << 16 | static_cast<std::uint16_t>(device.index);
  }

  std::atomic<std::uint32_t> last_{0};  ///< most processes use one device
  std::atomic<std::size_t> count_{0};
  mutable Mutex mutex_;
  std::vector<Device> devices_ GUARDED_BY(mutex_);
};

}  // namespace onecopy
