// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "onecopy/core/bytes.h"

namespace onecopy {

/// RFC 4648 section 5 without padding: A-Z a-z 0-9 - _. Appends to `out`.
void append_base64url(ByteSpan bytes, std::string& out);

/// Decodes; appends to `out`. Exactly one text stands for given bytes, so unused bits must be zero. Returns the
/// position of the first character that cannot be there, or npos if there is none.
std::size_t decode_base64url(std::string_view text, Bytes& out);

}  // namespace onecopy
