// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "driver_api.h"
#include "onecopy/core/tensor_view.h"

namespace onecopy::cuda {

// Thread safety: all functions may be called concurrently.

/// Can `ordinal` reach memory of `owner`?
bool has_path(int ordinal, int owner);
/// Throws unsupported, saying what to do, when there is none.
void check_path(int ordinal, int owner);
/// Lets `ordinal` use what is mapped at [base, base + bytes). REQUIRES: it has a path to the memory, and a context is
/// current.
void set_access(CUdeviceptr base, std::size_t bytes, int ordinal, Access access);
/// The same, and says whether the driver did it.
bool try_set_access(CUdeviceptr base, std::size_t bytes, int ordinal, Access access);
/// Lets `ordinal`, which may be the owner itself, read and write what is mapped at [base, base + bytes), memory of
/// `owner`. Throws unsupported when there is no path between them.
void allow_mapping(CUdeviceptr base, std::size_t bytes, int ordinal, int owner);
/// Lets `ordinal` use all memory of cudaMalloc of `owner` at once. Throws unsupported when there is no path between
/// them. REQUIRES: they are two.
void allow_allocations(int ordinal, int owner);
/// Lets `ordinal` read [at, at + bytes), memory of `owner`, for a copy: what is mapped here, once for each mapping, or
/// all memory of cudaMalloc of that device. False when there is no path between them, and for memory of others that
/// comes in another way. REQUIRES: they are two, and a context is current.
bool let_read(int ordinal, int owner, CUdeviceptr at, std::size_t bytes);

}  // namespace onecopy::cuda
