// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "driver_api.h"
#include "onecopy/device/backend.h"

namespace onecopy::cuda {

/// What travels beside the descriptors of a CUDA segment, in ExportedMemory::blob: the sizes of its
/// chunks (each with a descriptor), or one chunk with a legacy handle.
struct ExportedChunks {
  Access access = Access::read_write;
  std::vector<std::uint64_t> sizes;
  CUipcMemHandle handle{};  ///< of kind cuda_ipc

  std::uint64_t total() const noexcept;
};

Bytes encode(const ExportedChunks& chunks);
/// Throws bad_handle when the blob contradicts itself or the rest of `memory`.
ExportedChunks decode_chunks(const ExportedMemory& memory);

}  // namespace onecopy::cuda
