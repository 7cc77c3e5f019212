// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "onecopy/core/api.h"
#include "onecopy/device/stream.h"
#include "onecopy/share/load.h"

ONECOPY_API_BEGIN
namespace onecopy {

/// Copies tensors to another device, in the order of `stream`, which belongs to the card: from the host to a card, or
/// from a card to pinned host memory. Adjacent tensors become one copy and one block, so they keep each other's memory
/// alive; layouts stay the same.
///
/// Pins host memory that is not pinned if it is at least 32 MiB in total. Memory beyond ONECOPY_PIN_LIMIT is copied
/// unpinned and counted in stats().pageable_copies. Host memory that cannot be pinned in place, as of other libraries or
/// of a stored version that was received for writing, goes through a ring of pinned memory. Only these two kinds of
/// copies block the caller. Throws what empty() throws, and invalid_argument for two cards (use copy()) and for memory
/// that another library has on a card. REQUIRES: the host memory stays unchanged until the stream has done the copies.
std::vector<Tensor> to_device(std::span<const Tensor> tensors, Device device, Stream stream = {});

/// Reads a safetensors file, or a directory of them (see load_safetensors()), straight to a card. A few threads read
/// parts into pinned memory while the card copies other parts. Parts that are not in the page cache are read around it
/// if the file system supports direct reads. Each file becomes a block of shareable memory of the card, each tensor at
/// a multiple of 256 bytes. The copies are done on return. Throws what load_safetensors() and empty() throw.
std::vector<NamedTensor> load_safetensors(const std::string& path, Device device, Stream stream = {},
                                          const LoadProgress& progress = {});

}  // namespace onecopy
ONECOPY_API_END
