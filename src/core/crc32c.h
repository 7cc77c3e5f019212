// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace onecopy::crc {

/// Continues a raw (not inverted) CRC over `size` bytes.
using Update = std::uint32_t (*)(std::uint32_t crc, const std::byte* at, std::size_t size) noexcept;

std::uint32_t update_by_table(std::uint32_t crc, const std::byte* at, std::size_t size) noexcept;
/// Returns a function that uses the processor's instruction; null if there is none.
Update hardware_update() noexcept;

}  // namespace onecopy::crc
