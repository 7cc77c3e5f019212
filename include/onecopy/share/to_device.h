// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "onecopy/device/stream.h"
#include "onecopy/share/load.h"

namespace onecopy {

/// Copies of tensors on another device, in the order of `stream`, which belongs to the card: from the host to a card,
/// or from a card to pinned memory of the host. Tensors that lie beside each other become one copy and one block, so
/// they keep each other's memory; layouts stay. Memory of the host that is not pinned is, when it is 32 MiB and more in
/// all; beyond ONECOPY_PIN_LIMIT it is copied as it is, and counted in stats().pageable_copies. Returns at once but for
/// such; the host's memory must stay as it is until the stream has come past the copies. Throws what empty() throws,
/// invalid_argument for two cards (use copy()) and for memory of other libraries.
std::vector<Tensor> to_device(std::span<const Tensor> tensors, Device device, Stream stream = {});

/// Reads a safetensors file, or a directory of them (see load_safetensors()), straight to a card: a few threads read
/// parts into pinned memory while the card copies others from it. What is not in the page cache is read past it, by
/// direct reads, where the file system has those. Each file is a block of shareable memory of the card, each tensor at
/// a multiple of 256 bytes. The stream has come past the copies on return. Throws what load_safetensors() throws, and
/// empty().
std::vector<NamedTensor> load_safetensors(const std::string& path, Device device, Stream stream = {},
                                          const LoadProgress& progress = {});

}  // namespace onecopy
