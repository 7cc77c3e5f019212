// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "onecopy/device/stream.h"
#include "onecopy/share/load.h"

namespace onecopy {

/// Copies of tensors on another device, in the order of `stream`, which belongs to the card. They go from the host to a
/// card, or from a card to pinned memory of the host. Neighbouring tensors become one copy and one block, so they keep
/// each other's memory; layouts stay.
///
/// Memory of the host that is not pinned is pinned if it is 32 MiB and more in all. Beyond ONECOPY_PIN_LIMIT it is
/// copied unpinned, and counted in stats().pageable_copies; only such copies keep the caller waiting. Throws as
/// empty() does, invalid_argument for two cards (use copy()) and for memory of other libraries. REQUIRES: the host's
/// memory stays as it is until the stream has passed the copies.
std::vector<Tensor> to_device(std::span<const Tensor> tensors, Device device, Stream stream = {});

/// Reads a safetensors file, or a directory of them (see load_safetensors()), straight to a card. A few threads read
/// parts into pinned memory while the card copies others from it. If the file system has direct reads, parts that are
/// not in the page cache are read past it. Each file is a block of shareable memory of the card, each tensor at a
/// multiple of 256 bytes. The stream has passed the copies on return. Throws as load_safetensors() does, and empty().
std::vector<NamedTensor> load_safetensors(const std::string& path, Device device, Stream stream = {},
                                          const LoadProgress& progress = {});

}  // namespace onecopy
