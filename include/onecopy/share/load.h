// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "onecopy/memory/tensor.h"
#include "onecopy/share/bundle.h"

namespace onecopy {

/// A function that is called on the loading thread at the start, from time to time, and at the end: bytes done, bytes
/// in all. The first half is done while memory is reserved (after each 16 MiB of it), the second while the file is
/// read. An exception of it ends the loading and reaches the caller; the memory is given back.
using LoadProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

/// Reads all tensors of a safetensors file straight into one block of shared memory, each at a multiple of 64 bytes,
/// in the order of the file. The block lives as long as any of the tensors.
///
/// `path` may be a directory, too. It has one `.safetensors` file, or several and the index that names the file of
/// each tensor (`model.safetensors.index.json`); then each file is a block. All headers are checked, against each
/// other and the index, before any data is read.
///
/// Throws bad_file with the reason if the file contradicts its format or the index, unsupported for a dtype that
/// onecopy lacks. Throws invalid_argument for a path that is not a file (a pipe, a device), and for a directory that
/// does not determine the files to read. Throws out_of_memory, system (ENOENT for a missing file).
std::vector<NamedTensor> load_safetensors(const std::string& path, const LoadProgress& progress = {});

/// Reads a NumPy .npy file (any order of dimensions) into shared memory. Throws as above, and unsupported for
/// elements that are not plain little-endian numbers.
Tensor load_npy(const std::string& path, const LoadProgress& progress = {});

}  // namespace onecopy
