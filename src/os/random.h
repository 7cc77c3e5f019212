// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

namespace onecopy {

/// Fills `bytes` from the kernel's generator, good enough for keys and unguessable names. Thread safety: may be called
/// concurrently, also right after fork.
void random_bytes(std::span<std::byte> bytes);

/// Returns a number or an array of random bytes. Thread safety: as random_bytes().
template <class T>
T random_value() {
  T value;
  random_bytes(std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

}  // namespace onecopy
