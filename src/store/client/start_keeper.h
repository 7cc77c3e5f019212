// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace onecopy::store {

/// Runs `COMMAND store serve --background`, which returns when clients can connect. Has no effect if another process
/// has just started a keeper. Throws unsupported with the command's output if the command fails.
void start_keeper(const std::string& command);

}  // namespace onecopy::store
