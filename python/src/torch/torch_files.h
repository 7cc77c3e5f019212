// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "onecopy/memory/tensor.h"
#include "torch/torch_api.h"

/// Turns files of shared memory in which torch keeps storages into blocks of onecopy.
/// Thread safety: all functions are called with the GIL held.
namespace onecopy::python::torch {

/// The memory of a storage that torch keeps in a file.
struct SharedFile {
  Tensor bytes;   ///< u8[nbytes]: the same pages, mapped once more
  bool has_name;  ///< if so, torch's own mapping counts the openers, and the last one removes the name
};

/// Returns the memory of a storage that torch has shared. Processes that opened it through torch still use this memory.
/// Empty for a private mapping of torch.from_file(), which torch also calls shared. Throws unsupported for a file that
/// torch.from_file() has mapped shared, and for a file whose name was removed or reused. REQUIRES:
/// is_shared_by_torch(storage).
std::optional<SharedFile> adopt_file_of(const TorchSymbols& torch, nb::handle storage);

/// Makes torch move a storage into a file, which becomes a block: with a descriptor, or with a name for the strategy
/// file_system. Throws out_of_memory before anything is changed if /dev/shm or the control group has too little memory.
/// REQUIRES: the storage is not shared yet.
Tensor move_into_file(const TorchSymbols& torch, nb::handle storage);

}  // namespace onecopy::python::torch
