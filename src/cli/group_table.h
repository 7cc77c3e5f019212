// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "owner_table.h"

namespace onecopy::cli {

/// The groups of rpc that processes are members of. Each member has a line, and below it one for each peer as that
/// member sees it, with lanes, calls and routes.
std::string group_table(const std::vector<ListedOwner>& owners);

}  // namespace onecopy::cli
