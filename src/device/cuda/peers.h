// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "driver_api.h"
#include "onecopy/core/tensor_view.h"

namespace onecopy::cuda {

// Thread safety: all functions may be called concurrently.

/// Returns whether `ordinal` can reach memory of `owner`.
bool has_path(int ordinal, int owner);
/// Throws unsupported, with advice, if there is no path.
void check_path(int ordinal, int owner);
/// Lets `ordinal` use the mappings in [base, base + bytes). REQUIRES: it has a path to the memory, and a context is
/// current.
void set_access(CUdeviceptr base, std::size_t bytes, int ordinal, Access access);
/// Does what set_access() does. Returns false if the driver refuses.
bool try_set_access(CUdeviceptr base, std::size_t bytes, int ordinal, Access access);
/// Lets `ordinal`, which may be the owner itself, read and write the mappings in [base, base + bytes), memory of
/// `owner`. Throws unsupported if there is no path between them.
void allow_mapping(CUdeviceptr base, std::size_t bytes, int ordinal, int owner);
/// Lets `ordinal` use all memory of cudaMalloc of `owner` at once. Throws unsupported if there is no path between
/// them. REQUIRES: the two differ.
void allow_allocations(int ordinal, int owner);
/// Lets `ordinal` read [at, at + bytes), memory of `owner`, for a copy: mappings of this process, each once, or all
/// memory of cudaMalloc of that device. Returns false if there is no path between them, and for memory that other
/// libraries mapped. REQUIRES: the two differ, and a context is current.
bool let_read(int ordinal, int owner, CUdeviceptr at, std::size_t bytes);

}  // namespace onecopy::cuda
