// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/reservation.h"
#include "devices.h"
#include "kept_descriptors.h"

namespace onecopy::cuda {

/// A reference to an allocation of the driver. Move-only. Thread safety: as a value.
class AllocationHandle {
 public:
  AllocationHandle() = default;
  explicit AllocationHandle(CUmemGenericAllocationHandle handle) noexcept : handle_(handle) {}
  AllocationHandle(AllocationHandle&& other) noexcept : handle_(std::exchange(other.handle_, 0)) {}
  AllocationHandle& operator=(AllocationHandle&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~AllocationHandle();
  CUmemGenericAllocationHandle get() const noexcept { return handle_; }

 private:
  CUmemGenericAllocationHandle handle_ = 0;
};

/// A chunk of cuMemCreate, of this process or imported. Thread safety: see PhysicalChunk.
class CudaChunk : public PhysicalChunk {
 public:
  CudaChunk(int ordinal, std::size_t bytes, AllocationHandle handle) noexcept
      : ordinal_(ordinal), bytes_(bytes), handle_(std::move(handle)) {}

  std::size_t size() const noexcept override { return bytes_; }
  /// Returns the device that holds the memory.
  int ordinal() const noexcept { return ordinal_; }
  CUmemGenericAllocationHandle handle() const noexcept { return handle_.get(); }
  /// Returns another descriptor of the memory. Throws unsupported if this process keeps none and cannot create one.
  virtual Fd descriptor() const = 0;

 private:
  const int ordinal_;
  const std::size_t bytes_;
  const AllocationHandle handle_;
};

/// Exports an allocation of the driver as a descriptor.
CUresult try_export(const Driver& driver, CUmemGenericAllocationHandle memory, Fd& exported);

}  // namespace onecopy::cuda
