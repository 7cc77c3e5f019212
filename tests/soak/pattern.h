// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "onecopy/memory/tensor.h"
#include "soak/commands.h"

namespace onecopy::soak {

// A block identifies itself: its number and version in the first two words, and in the other words a pattern of number,
// version and place. All of a tensor's block is written and read, also beyond the tensor's reach; of blocks above 64
// KiB a word in each 512 bytes.

inline constexpr std::uint64_t kLeastBytes = 64;

/// Returns the bytes of a row of bytes, or of the block of a tensor that repeats it.
std::span<std::byte> bytes_of(const Tensor& tensor);
void fill(const Tensor& tensor, std::uint64_t block, std::uint64_t version);
Seen read(const Tensor& tensor);

}  // namespace onecopy::soak
