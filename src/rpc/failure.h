// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "onecopy/channel/queue.h"
#include "onecopy/core/error.h"

namespace onecopy::rpc {

/// A failure of a function in C++ as the body of an answer: an error's code, and the text.
Message encode_failure(ErrorCode code, const std::string& text);
/// Throws it again.
[[noreturn]] void throw_failure(const Message& answer);

}  // namespace onecopy::rpc
