// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "onecopy/memory/tensor.h"
#include "torch/torch_api.h"

/// Files of shared memory in which torch keeps storages, as blocks of ours.
/// Thread safety: all functions are called with the GIL held.
namespace onecopy::python::torch {

/// The memory of a storage that torch has in a file.
struct SharedFile {
  Tensor bytes;  ///< u8[nbytes]: the same pages, mapped once more
  bool
      /// Openers by name need torch's own mapping: it counts, and removes the name with the last.
      has_name;
};

/// The memory of a storage that is shared by torch's means. Holders that got it from torch go on seeing this memory.
/// Empty for private mappings of torch.from_file(), which torch calls shared, too. Throws unsupported for a file that
/// torch.from_file() mapped shared, and for one whose name does not lead to it any more. REQUIRES:
/// is_shared_by_torch(storage).
std::optional<SharedFile> adopt_file_of(const Api& torch, nb::handle storage);

/// Has torch move a storage into a file of its own, which becomes a block: a descriptor, or with the strategy
/// file_system a name. Throws out_of_memory, before torch has touched anything, if /dev/shm or the control group has
/// no room for it. REQUIRES: it is not shared yet.
Tensor move_into_file(const Api& torch, nb::handle storage);

}  // namespace onecopy::python::torch
