// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "device/backend.h"
#include "driver.h"

namespace onecopy::cuda {

/// One device that this process may use.
struct DeviceEntry {
  CUdevice device = 0;
  DeviceInfo info;
  bool exports_descriptors = false;   ///< memory can be made that leaves as a descriptor
  bool has_stream_words = false;      ///< streams can wait for and write 64-bit words
  bool has_host_addresses = false;    ///< uses registered memory of the host at its own addresses
  std::atomic<int> open_exports = 0;  ///< segments that keep a descriptor, see physical_chunk.cpp
  std::once_flag retained;
  CUcontext context = nullptr;  ///< primary; see Devices::context()
};

/// The devices of this process, as CUDA_VISIBLE_DEVICES leaves them.
/// Thread safety: all members may be called concurrently.
class Devices {
 public:
  /// Throws as Driver::get() does.
  static Devices& get();

  std::size_t size() const noexcept { return entries_.size(); }
  /// Throws invalid_argument if there is no such device.
  DeviceEntry& at(int ordinal);
  /// The primary context, which frameworks use; retained for the rest of the process.
  CUcontext context(int ordinal);
  /// Of memory on any of the devices.
  std::size_t granularity() const noexcept { return granularity_; }

 private:
  Devices();

  std::vector<std::unique_ptr<DeviceEntry>> entries_;
  std::size_t granularity_ = 0;
};

/// Does this process use the device? Asking takes no context.
bool is_in_use(int ordinal);

/// Makes a device's primary context current for a scope. Enough for work in streams. Thread safety: belongs to the
/// thread that made it.
class UseContext {
 public:
  explicit UseContext(int ordinal);
  ~UseContext();
  UseContext(const UseContext&) = delete;
  UseContext& operator=(const UseContext&) = delete;

 protected:
  const Driver& driver_;

 private:
  bool pushed_ = false;  ///< most threads use one device, and it is current
};

/// Lets calls of this thread through that would otherwise fail during a capture, its own or another's, and spoil it.
/// Calls about memory are no part of a capture.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver);
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const Driver& driver_;
  int mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

/// UseContext and RelaxedCapture. Thread safety: belongs to the thread that made it.
class UseDevice : private UseContext {
 public:
  explicit UseDevice(int ordinal) : UseContext(ordinal), relaxed_(driver_) {}

 private:
  const RelaxedCapture relaxed_;
};

/// Properties of memory on a device that can leave as a descriptor.
CUmemAllocationProp exportable_on(const DeviceEntry& device) noexcept;

}  // namespace onecopy::cuda
