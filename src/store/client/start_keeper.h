// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace onecopy::store {

/// Runs `COMMAND store serve --background`, which returns when clients can connect. The keeper ends when it has been empty
/// and unused for ten minutes. It is a unit of its own if the
/// user's systemd lives longer than the control group of this process; otherwise logs what it ends with. Has no effect if another process
/// has just started a keeper. Throws unsupported with the command's output if the command fails.
/// `environment`: NAME=VALUE, which replace variables of this process.
void start_keeper(const std::string& command, const std::vector<std::string>& environment);

}  // namespace onecopy::store
