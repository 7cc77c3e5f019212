// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "onecopy/core/api.h"
#include "onecopy/memory/tensor.h"
#include "onecopy/share/bundle.h"

ONECOPY_API_BEGIN
namespace onecopy {

/// A function that the loading thread calls at the start, from time to time, and at the end, with the bytes done and
/// the bytes in total. The first half is counted while memory is reserved (every 16 MiB), the second while the file is
/// read. An exception that the function throws ends the loading and reaches the caller; the memory is released.
using LoadProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

/// Reads all tensors of a safetensors file into one block of shared memory, in the order of the file, each at a
/// multiple of 64 bytes. The block lives as long as any of the tensors.
///
/// `path` may also be a directory with one `.safetensors` file, or with several and the index that names the file of
/// each tensor (`model.safetensors.index.json`); each file becomes a block. All headers are checked against each other
/// and the index before any data is read.
///
/// Throws bad_file with the reason if the file contradicts its format or the index, unsupported for a dtype that
/// onecopy lacks, and invalid_argument for a path that is not a regular file (a pipe, a device) or a directory that
/// does not determine the files to read. Throws out_of_memory and system (ENOENT for a missing file).
std::vector<NamedTensor> load_safetensors(const std::string& path, const LoadProgress& progress = {});

/// Reads a NumPy .npy file (any order of dimensions) into shared memory. Throws what load_safetensors() throws, and
/// unsupported for elements that are not plain little-endian numbers.
Tensor load_npy(const std::string& path, const LoadProgress& progress = {});

}  // namespace onecopy
ONECOPY_API_END
