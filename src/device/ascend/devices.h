// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <set>
#include <vector>

#include "device/backend.h"
#include "driver.h"
#include "os/mutex.h"

namespace onecopy::ascend {

/// A device that this process may use.
struct DeviceEntry {
  DeviceInfo
      info;  ///< total_bytes is 0 until the device is used, because asking would create a context on it
  std::once_flag opened;
  aclrtContext context = nullptr;    ///< the default context; see Devices::context()
  std::atomic<bool> is_open{false};  ///< onecopy has used the device
  /// The kind of new segments; empty until it was tried, see segment_kind.cpp.
  std::atomic<SegmentKind> kind{};
  /// The error after which the device does not work in this process.
  std::atomic<aclError> failed{ACL_SUCCESS};
  std::set<int> peers;  ///< the devices whose memory this one reaches; guarded by Devices::mutex_
};

/// The devices of this process, as ASCEND_RT_VISIBLE_DEVICES leaves them. Thread safety: all members may be called
/// concurrently.
class Devices {
 public:
  /// Returns the devices. Throws what Driver::get() throws.
  static Devices& get();

  std::size_t size() const noexcept { return entries_.size(); }
  /// Returns a device. Throws invalid_argument if it does not exist.
  DeviceEntry& at(int ordinal);
  /// Returns the default context, which frameworks use and the process keeps until it ends.
  aclrtContext context(int ordinal);
  /// Returns the device with this UUID, or -1 if it is not visible here.
  int find(const Uuid& uuid) const noexcept;
  /// Enables the access of one device to the memory of the other, once. Returns false if there is no path.
  bool reach(int from, int to);
  /// Does what reach() does. Throws unsupported, with advice, if there is no path.
  void require_reach(int from, int to);

 private:
  Devices();

  Mutex mutex_;  ///< guards the peers of each entry
  std::vector<std::unique_ptr<DeviceEntry>> entries_;
};

/// Throws for a failed allocation: out_of_memory with the numbers, for which `verb` says what was tried.
void check_room(aclError result, const char* call, const char* verb, int ordinal, std::size_t bytes);

/// A scope in which a device's default context is current. A thread that had no context keeps this one, because ACL
/// cannot unset it.
class UseDevice {
 public:
  explicit UseDevice(int ordinal);
  ~UseDevice();
  UseDevice& operator=(UseDevice&&) = delete;

 private:
  const Driver& driver_;
  aclrtContext before_ = nullptr;
};

}  // namespace onecopy::ascend
