// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>

#include "onecopy/core/bytes.h"
#include "os/hmac.h"

namespace onecopy {

using ShortMac = std::array<std::uint8_t, 16>;

/// Poly1305 (RFC 8439) of the parts, one after the other, of which all but the last have a multiple of 16 bytes: at
/// gigabytes a second. REQUIRES: the key is secret, random, and used for one message. A pure function.
ShortMac poly1305(const Digest& one_time_key, std::initializer_list<ByteSpan> parts) noexcept;

}  // namespace onecopy
