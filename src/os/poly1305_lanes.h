// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "onecopy/core/bytes.h"

/// Poly1305 of eight blocks at a time, for processors that multiply eight numbers of 52 bits at once (AVX-512 IFMA).
namespace onecopy {

/// A number modulo 2^130 - 5, in limbs of 44, 44 and 42 bits; the lower two may be a little larger.
struct PolyNumber {
  std::uint64_t limbs[3] = {};
};

/// Whether this processor has what add_blocks_in_lanes() needs.
bool has_poly_lanes() noexcept;

/// Adds whole blocks of 16 bytes to `sum`: (sum + block) * r for each. `powers` are r to r^8. A pure function.
/// REQUIRES: has_poly_lanes(), and bytes are a multiple of 128, at least 128.
void add_blocks_in_lanes(PolyNumber& sum, const PolyNumber (&powers)[8], ByteSpan bytes) noexcept;

}  // namespace onecopy
