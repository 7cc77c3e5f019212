// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "onecopy/core/bytes.h"

namespace onecopy {

// Pure functions; may be called concurrently.

using Digest = std::array<std::uint8_t, 32>;

/// SHA-256 (FIPS 180-4).
Digest sha256(ByteSpan bytes) noexcept;
/// HMAC-SHA-256 (RFC 2104).
Digest hmac_sha256(ByteSpan key, ByteSpan message) noexcept;
/// Takes equally long wherever the bytes differ. Returns false if the lengths differ.
bool equal_in_constant_time(ByteSpan a, ByteSpan b) noexcept;

}  // namespace onecopy
