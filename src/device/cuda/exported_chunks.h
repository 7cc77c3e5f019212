// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "device/backend.h"
#include "driver_api.h"

namespace onecopy::cuda {

/// The data beside the descriptors of a CUDA segment, in ExportedMemory::blob: the sizes of its chunks (each with a
/// descriptor), or one chunk with a legacy handle.
struct ExportedChunks {
  Access access = Access::read_write;
  std::vector<std::uint64_t> sizes;
  CUipcMemHandle handle{};  ///< of kind cuda_ipc

  std::uint64_t total() const noexcept;
};

/// As many as a message describes: 320 GiB in chunks of 20 MiB, which expandable segments have.
inline constexpr std::size_t kMaxChunks = 16'384;
/// As many as it has descriptors for, with the block table.
inline constexpr std::size_t kMaxDescriptors = 252;

Bytes encode(const ExportedChunks& chunks);
/// Throws bad_handle if the blob contradicts itself or the rest of `memory`.
ExportedChunks decode_chunks(const ExportedMemory& memory);

}  // namespace onecopy::cuda
