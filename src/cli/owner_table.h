// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "onecopy/share/stats.h"
#include "text.h"

namespace onecopy::cli {

/// An owner, with its command line.
struct ListedOwner {
  OwnerInfo info;
  std::string command;  ///< escaped; the process's name in brackets if the command line cannot be read
};

/// Returns the command line of a process from /proc, escaped; empty if it cannot be read or is empty.
std::string command_line(int pid);

/// Returns the owners with their command lines, the ones with most memory first.
std::vector<ListedOwner> sorted(std::vector<OwnerInfo> owners);

/// Returns whether the owner holds memory, or blocks that other processes may use.
bool shares_something(const OwnerInfo& owner);

/// Returns a line for each owner, cut to `width` columns, and a line of totals for two or more. REQUIRES: at least one
/// owner.
std::string owner_table(const std::vector<ListedOwner>& owners, std::size_t width);

/// Returns the details that the table omits: the whole command line, memory by device, borrowers, blocks in transit by
/// place. Each line starts with the pid.
std::string owner_details(const ListedOwner& owner);

/// Returns a table of the rpc groups that processes are members of: a line for each member, and below it a line for
/// each peer as the member sees it, with lanes, calls and routes.
std::string group_table(const std::vector<ListedOwner>& owners);

}  // namespace onecopy::cli
