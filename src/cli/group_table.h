// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "owner_table.h"

namespace onecopy::cli {

/// Returns a table of the rpc groups that processes are members of: a line for each member, and below it a line for
/// each peer as the member sees it, with lanes, calls and routes.
std::string group_table(const std::vector<ListedOwner>& owners);

}  // namespace onecopy::cli
