// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "onecopy/core/tensor_view.h"

namespace onecopy::ascend {

// Thread safety: all functions may be called concurrently.

/// Implements Backend::pin_host() and unpin_host().
void pin_host(int ordinal, void* at, std::size_t bytes, Access access);
void unpin_host(int ordinal, void* at) noexcept;
/// Implements Backend::require_in_place().
void require_in_place(int ordinal, const void* at);

}  // namespace onecopy::ascend
