// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>

#include "device/backend.h"
#include "os/mapping.h"
#include "os/mutex.h"

namespace onecopy {

/// Which devices' drivers know a page of words, and whether their streams can write it and wait for it: cards of one
/// kind may differ in that.
///
/// Thread safety: all members may be called concurrently. Only register_page() waits, for the driver: as long as any of
/// the process's streams is full.
class RegisteredDevices {
 public:
  /// Registers the page with the device's driver, the first time. Returns whether its streams can use it.
  bool register_page(Device device, const Mapping& page);
  /// False as long as it is not known.
  bool can_use(Device device) const { return find(device).value_or(false); }

  // Around a fork, which does not wait for the driver: a child cannot use it.
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }

 private:
  std::optional<bool> find(Device device) const;

  Mutex registering_;  ///< before mutex_; held while the driver waits
  mutable Mutex mutex_;
  std::map<Device, bool> known_ GUARDED_BY(mutex_);
};

}  // namespace onecopy
