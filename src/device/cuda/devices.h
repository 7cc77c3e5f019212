// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "device/backend.h"
#include "driver.h"

namespace onecopy::cuda {

/// A device that this process may use.
struct DeviceEntry {
  CUdevice device = 0;
  DeviceInfo info;
  bool exports_descriptors = false;   ///< memory can be allocated that is exported as a descriptor
  bool has_stream_words = false;      ///< streams can wait for and write 64-bit words
  bool has_host_addresses = false;    ///< the device uses registered host memory at the host's addresses
  std::atomic<int> open_exports = 0;  ///< segments that keep a descriptor, see physical_chunk.cpp
  std::once_flag retained;
  CUcontext context = nullptr;  ///< the primary context; see Devices::context()
};

/// The devices of this process, as CUDA_VISIBLE_DEVICES leaves them. Thread safety: all members may be called
/// concurrently.
class Devices {
 public:
  /// Returns the devices. Throws what Driver::get() throws.
  static Devices& get();

  std::size_t size() const noexcept { return entries_.size(); }
  /// Returns a device. Throws invalid_argument if it does not exist.
  DeviceEntry& at(int ordinal);
  /// Returns the primary context, which frameworks use and the process retains until it ends.
  CUcontext context(int ordinal);
  /// Returns the granularity of memory that suits all devices.
  std::size_t granularity() const noexcept { return granularity_; }

 private:
  Devices();

  std::vector<std::unique_ptr<DeviceEntry>> entries_;
  std::size_t granularity_ = 0;
};

/// Returns whether this process uses the device. Does not create a context.
bool is_in_use(int ordinal);

/// A scope in which a device's primary context is current, which suffices for work in streams. Thread safety: belongs
/// to the thread that created it.
class UseContext {
 public:
  explicit UseContext(int ordinal);
  ~UseContext();
  UseContext& operator=(UseContext&&) = delete;

 protected:
  const Driver& driver_;

 private:
  bool pushed_ = false;  ///< false in most threads, which use one device that is current already
};

/// A scope in which calls of this thread succeed that would otherwise fail and spoil a capture of this or another
/// thread. Calls about memory are not part of a capture.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver);
  ~RelaxedCapture();
  RelaxedCapture& operator=(RelaxedCapture&&) = delete;

 private:
  const Driver& driver_;
  int mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

/// A scope that combines UseContext and RelaxedCapture. Thread safety: belongs to the thread that created it.
class UseDevice : private UseContext {
 public:
  explicit UseDevice(int ordinal) : UseContext(ordinal), relaxed_(driver_) {}

 private:
  const RelaxedCapture relaxed_;
};

/// Throws unsupported, with advice, if memory of the device cannot be exported as a descriptor.
void require_exports(const DeviceEntry& device);
/// Returns the properties of memory on a device that can be exported as a descriptor.
CUmemAllocationProp exportable_on(const DeviceEntry& device) noexcept;

}  // namespace onecopy::cuda
