// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "commands.h"

namespace onecopy::cli {

/// Adds `store serve`, `store status` and `store stop`, the commands about the keeper's processes.
void add_keeper_commands(CLI::App& store, Command& command);

}  // namespace onecopy::cli
