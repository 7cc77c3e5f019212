// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "onecopy/core/api.h"
#include "onecopy/core/device.h"
#include "onecopy/memory/tensor.h"

ONECOPY_API_BEGIN
namespace onecopy {

// The C structs of DLPack (github.com/dmlc/dlpack, ABI version 1), which Python objects exchange in capsules. Their
// layout must not change.

/// The ABI version of a struct. Another major version has another layout.
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

/// An array on memory of another library. The struct owns nothing.
struct DLTensor {
  void* data;
  DLDevice device;
  std::int32_t ndim;
  DLDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  ///< in elements; null means row-major (not allowed since 1.2)
  std::uint64_t byte_offset;
};

/// The content of a capsule named "dltensor".
struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);
};

/// The content of a capsule named "dltensor_versioned".
struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned* self);
  std::uint64_t flags;
  DLTensor dl_tensor;
};

ONECOPY_CONSTANT std::int32_t kDLCpu = 1;
ONECOPY_CONSTANT std::int32_t kDLCuda = 2;
ONECOPY_CONSTANT std::int32_t kDLCudaHost = 3;      ///< pinned memory, which is host memory all the same
ONECOPY_CONSTANT std::int32_t kDLCudaManaged = 13;  ///< migrates between the host and devices
ONECOPY_CONSTANT std::int32_t kDLExtDev =
    12;  ///< torch_npu's number for its devices; DLPack has none for them
ONECOPY_CONSTANT std::uint64_t kDLReadOnly = 1;  ///< bit of flags

// Thread safety: all functions may be called concurrently. No function waits for a device: the caller orders the work
// of its streams on the memory.

/// Returns DLPack's name of a device. Throws unsupported for a device that DLPack has no number for.
DLDevice to_dl(Device device);
/// Returns the device of DLPack's name. Pinned host memory belongs to the CPU. The number for extensions means Ascend
/// if Ascend's runtime is loaded. Throws unsupported for all other numbers.
Device from_dl(DLDevice device);

/// Returns the tensor as DLPack 1.x. The caller, or the next owner of the struct, must call the deleter, which releases
/// the block. Throws unsupported for devices that DLPack has no number for.
DLManagedTensorVersioned* to_dlpack_versioned(const Tensor& tensor);
/// Returns the tensor in DLPack's old form. Throws read_only for a read-only tensor, which that form cannot express.
DLManagedTensor* to_dlpack(const Tensor& tensor);

/// Returns a tensor on the foreign memory. The last copy of the tensor calls the deleter. Takes ownership of `managed`
/// in any case: if the call throws, the deleter has been called. Throws version_mismatch, unsupported (device, dtype,
/// negative strides), and invalid_argument for fields that contradict each other.
Tensor from_dlpack(DLManagedTensorVersioned* managed);
Tensor from_dlpack(DLManagedTensor* managed);

}  // namespace onecopy
ONECOPY_API_END
