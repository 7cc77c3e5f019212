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

/// One device that this process may use.
struct DeviceEntry {
  DeviceInfo info;  ///< total_bytes is 0 until the device is used: asking would take a context on it
  std::once_flag opened;
  aclrtContext context = nullptr;    ///< the default one; see Devices::context()
  std::atomic<bool> is_open{false};  ///< the library has used it
  std::atomic<SegmentKind> kind{};   ///< of new segments; none until it was tried: see segment_kind.h
  std::atomic<aclError> failed{ACL_SUCCESS};  ///< the error after which nothing works on it any more here
  std::set<int> peers;                        ///< whose memory it reaches; under Devices::mutex_
};

/// The devices of this process, as ASCEND_RT_VISIBLE_DEVICES leaves them.
/// Thread safety: all members may be called concurrently.
class Devices {
 public:
  /// Throws as Driver::get() does.
  static Devices& get();

  std::size_t size() const noexcept { return entries_.size(); }
  /// Throws invalid_argument if there is no such device.
  DeviceEntry& at(int ordinal);
  /// The default context, which frameworks use; kept for the rest of the process.
  aclrtContext context(int ordinal);
  DeviceInfo info(int ordinal);
  /// The device with this UUID; -1 if it is not visible here.
  int find(const Uuid& uuid) const noexcept;
  /// Enables the access of one device to the memory of the other, once. Returns false if there is no path.
  bool reach(int from, int to);
  /// Throws unsupported, in plain words, if there is no path.
  void require_reach(int from, int to);

 private:
  Devices();

  Mutex mutex_;  ///< of the peers of each entry
  std::vector<std::unique_ptr<DeviceEntry>> entries_;
};

/// Makes a device's default context current for a scope. A thread that had none keeps it: ACL cannot take the
/// last one away.
class UseDevice {
 public:
  explicit UseDevice(int ordinal);
  ~UseDevice();
  UseDevice(const UseDevice&) = delete;
  UseDevice& operator=(const UseDevice&) = delete;

 private:
  const Driver& driver_;
  aclrtContext before_ = nullptr;
};

}  // namespace onecopy::ascend
