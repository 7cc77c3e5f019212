// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

namespace onecopy {

/// Fills `bytes` from the kernel's generator, good enough for keys and unguessable names. Thread safety: may be called
/// concurrently, also right after fork.
void random_bytes(std::span<std::byte> bytes);

}  // namespace onecopy
