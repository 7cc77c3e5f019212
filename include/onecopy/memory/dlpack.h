// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "onecopy/core/device.h"
#include "onecopy/memory/tensor.h"

namespace onecopy {

// The C structs of DLPack (github.com/dmlc/dlpack, ABI version 1), which Python objects exchange in
// capsules. Their layout must not change.

/// The ABI version of a struct; another major version has another layout.
struct DLPackVersion {
  std::uint32_t major;
  std::uint32_t minor;
};

/// A device by its kind and number.
struct DLDevice {
  std::int32_t device_type;
  std::int32_t device_id;
};

/// An element type by its code, bits and lanes.
struct DLDataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

/// An array on memory of another library. It owns nothing.
struct DLTensor {
  void* data;
  DLDevice device;
  std::int32_t ndim;
  DLDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  ///< in elements; null means row-major (not allowed since 1.2)
  std::uint64_t byte_offset;
};

/// Capsule "dltensor".
struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);
};

/// Capsule "dltensor_versioned".
struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned* self);
  std::uint64_t flags;
  DLTensor dl_tensor;
};

inline constexpr std::int32_t kDLCpu = 1;
inline constexpr std::int32_t kDLCuda = 2;
inline constexpr std::int32_t kDLCudaHost = 3;      ///< pinned, and the host's own nevertheless
inline constexpr std::int32_t kDLCudaManaged = 13;  ///< migrates between the host and devices
inline constexpr std::int32_t kDLExtDev =
    12;  ///< torch_npu's number for its devices; DLPack has none for them
inline constexpr std::uint64_t kDLReadOnly = 1;  ///< bit of flags

// Thread safety: all functions may be called concurrently. None waits for a device: the caller orders the work of its
// streams on the memory.

/// Returns DLPack's name of a device. Throws unsupported.
DLDevice to_dl(Device device);
/// The reverse. Pinned memory of the host is the CPU's. If Ascend's runtime is loaded, an extension's memory is
/// Ascend's. Throws unsupported for all others.
Device from_dl(DLDevice device);

/// The tensor as DLPack 1.x. The caller, or the struct's next owner, must call the deleter; the block is kept alive
/// until then. Throws unsupported for devices that DLPack has no number for here.
DLManagedTensorVersioned* to_dlpack_versioned(const Tensor& tensor);
/// The tensor in DLPack's old form, which cannot mark read-only memory: throws read_only for such tensors.
DLManagedTensor* to_dlpack(const Tensor& tensor);

/// A tensor on the foreign memory. The last copy of the tensor gives the memory back (deleter). Takes `managed` over
/// in any case: if the call throws, it is given back at once. Throws version_mismatch, unsupported (device, dtype,
/// negative strides), invalid_argument (contradictions).
Tensor from_dlpack(DLManagedTensorVersioned* managed);
Tensor from_dlpack(DLManagedTensor* managed);

}  // namespace onecopy
