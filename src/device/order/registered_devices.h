// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>

#include "device/backend.h"
#include "os/mapping.h"
#include "os/mutex.h"

namespace onecopy {

/// A record of the devices whose drivers know a page of words, and of whether their streams can write it and wait for
/// it, in which cards of one type may differ.
///
/// Thread safety: all members may be called concurrently. Only register_page() waits for the driver, while any of the
/// process's streams is full.
class RegisteredDevices {
 public:
  /// Registers the page with the device's driver at the first call. Returns whether its streams can use it.
  bool register_page(Device device, const Mapping& page);
  /// Returns whether the device's streams can use the page; false while this is unknown.
  bool can_use(Device device) const { return find(device).value_or(false); }

  // lock() and unlock() surround a fork. Neither waits for the driver, which a child cannot use.
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }

 private:
  std::optional<bool> find(Device device) const;

  Mutex registering_;  ///< taken before mutex_; held while the driver waits
  mutable Mutex mutex_;
  std::map<Device, bool> known_ GUARDED_BY(mutex_);
};

}  // namespace onecopy
