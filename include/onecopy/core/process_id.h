// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "onecopy/core/api.h"

ONECOPY_API_BEGIN
namespace onecopy {

/// The identity of a process, which is random and secret: the name of the process's broker socket is derived from it
/// with a one-way function.
using ProcessId = std::array<std::uint8_t, 16>;

}  // namespace onecopy
ONECOPY_API_END
