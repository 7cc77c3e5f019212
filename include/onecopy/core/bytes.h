// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "onecopy/core/api.h"

ONECOPY_API_BEGIN
namespace onecopy {

static_assert(std::endian::native == std::endian::little, "onecopy's formats are little endian");

using Bytes = std::vector<std::byte>;
using ByteSpan = std::span<const std::byte>;

/// Reads a trivially copyable value at an unaligned place. The caller has checked the bounds.
template <class T>
T load(const std::byte* at) noexcept {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

/// Writes a trivially copyable value to an unaligned place. The caller has checked the bounds.
template <class T>
void write_value(std::byte* at, const T& value) noexcept {
  static_assert(std::is_trivially_copyable_v<T>);
  std::memcpy(at, &value, sizeof value);
}

/// Returns the CRC-32C (Castagnoli) of the bytes, as iSCSI and ext4 use it. Uses the processor's instruction if there
/// is one.
std::uint32_t crc32c(ByteSpan bytes, std::uint32_t seed = 0) noexcept;

}  // namespace onecopy
ONECOPY_API_END
