// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "device/backend.h"
#include "driver_api.h"

namespace onecopy::cuda {

/// The data beside the descriptors of a CUDA segment, in ExportedMemory::blob: the sizes of its chunks, each of which
/// has a descriptor, or one chunk with a legacy handle.
struct ExportedChunks {
  Access access = Access::read_write;
  std::vector<std::uint64_t> sizes;
  CUipcMemHandle handle{};  ///< the handle of memory of kind cuda_ipc

  std::uint64_t total() const noexcept;
};

/// The max number of chunks that a message describes: 320 GiB in chunks of 20 MiB, which expandable segments use.
inline constexpr std::size_t kMaxChunks = 16'384;
/// The max number of chunk descriptors in a message, which also contains the block table's.
inline constexpr std::size_t kMaxDescriptors = 252;

Bytes encode(const ExportedChunks& chunks);
/// Decodes memory.blob. Throws bad_handle if the blob contradicts itself or the rest of `memory`.
ExportedChunks decode_chunks(const ExportedMemory& memory);

}  // namespace onecopy::cuda
