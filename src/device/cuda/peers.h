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
/// Lets `ordinal`, which may be the owner itself, read and write what is mapped at [base, base + bytes), memory of
/// `owner`. Throws unsupported when there is no path between them.
void allow_mapping(CUdeviceptr base, std::size_t bytes, int ordinal, int owner);
/// Lets `ordinal` use all memory of cudaMalloc of `owner` at once. Throws unsupported when there is no path between
/// them. REQUIRES: they are two.
void allow_allocations(int ordinal, int owner);

}  // namespace onecopy::cuda
