// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "onecopy/core/bytes.h"

namespace onecopy {

/// Appends the bytes in base64url (RFC 4648 section 5) without padding: A-Z a-z 0-9 - _.
void append_base64url(ByteSpan bytes, std::string& out);

/// Decodes, and appends to `out`. Each sequence of bytes has exactly one text, so unused bits must be zero. Returns the
/// position of the first invalid character, or npos.
std::size_t decode_base64url(std::string_view text, Bytes& out);

}  // namespace onecopy
