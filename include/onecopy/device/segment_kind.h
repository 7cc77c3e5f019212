// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "onecopy/core/api.h"
#include "onecopy/core/device.h"

ONECOPY_API_BEGIN
namespace onecopy {

/// The way in which a segment's memory was allocated, which determines how it is opened. The numbers are part of
/// handles.
enum class SegmentKind : std::uint8_t {
  memfd = 1,        ///< anonymous file: strategy file_descriptor
  named_file = 2,   ///< a file with a name in shared_directory(): strategy file_system
  cuda_vmm = 3,     ///< cuMemCreate, POSIX descriptor
  cuda_ipc = 4,     ///< cudaMalloc, legacy handle
  ascend_key = 5,   ///< aclrtMalloc, IPC key
  ascend_vmm = 6,   ///< aclrtMallocPhysical, 64-bit shareable handle
  shared_file = 7,  ///< host memory made by other means: a memfd or a file on tmpfs
  /// A sealed memfd, which no process can change. A borrower that opens the memory for writing gets a copy of its own of
  /// each page that it writes to.
  sealed_file = 8,
  /// An allocation of kind cuda_vmm that no process changes. Each process that has the memory also has a descriptor that
  /// shows others that the memory is in use.
  cuda_sealed = 9,
};

/// Returns whether the memory ends with the process that allocated it, even while borrowers have it open.
bool is_weak(SegmentKind kind) noexcept;
/// Returns whether no process can change the memory, so that its descriptors serve all accesses.
bool is_sealed(SegmentKind kind) noexcept;
/// Returns the type of device that holds memory of this kind.
DeviceType device_type(SegmentKind kind) noexcept;

}  // namespace onecopy
ONECOPY_API_END
