// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace onecopy {

/// Well-formed UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF. Reads each byte once.
bool is_utf8(std::string_view text) noexcept;

}  // namespace onecopy
