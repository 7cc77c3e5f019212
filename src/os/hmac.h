// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "onecopy/core/bytes.h"

namespace onecopy {

// Thread safety: all functions are pure and may be called concurrently.

using Digest = std::array<std::uint8_t, 32>;

/// Returns the SHA-256 of the bytes (FIPS 180-4).
Digest sha256(ByteSpan bytes) noexcept;
/// Returns the HMAC-SHA-256 of the message (RFC 2104).
Digest hmac_sha256(ByteSpan key, ByteSpan message) noexcept;
/// Compares in a time that does not depend on where the bytes differ. Returns false if the lengths differ.
bool equal_in_constant_time(ByteSpan a, ByteSpan b) noexcept;

}  // namespace onecopy
