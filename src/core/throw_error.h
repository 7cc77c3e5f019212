// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <utility>

#include "onecopy/core/error.h"

namespace onecopy {

/// Throws an Error with a message that fmt formats.
template <class... Values>
[[noreturn]] void throw_error(ErrorCode code, fmt::format_string<Values...> message, Values&&... values) {
  throw Error(code, fmt::format(message, std::forward<Values>(values)...));
}

}  // namespace onecopy
