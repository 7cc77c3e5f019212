// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "onecopy/share/stats.h"
#include "text.h"

namespace onecopy::cli {

/// An owner, with its command line.
struct ListedOwner {
  OwnerInfo info;
  std::string command;  ///< its command line, escaped; its name in brackets where that cannot be read
};

/// The command line of a process from /proc, escaped; empty if it cannot be read or is empty.
std::string command_line(int pid);

/// The blocks in transit in one place.
struct TransitSummary {
  std::uint64_t blocks = 0;
  double youngest = 0;  ///< seconds
  double oldest = 0;
};
std::map<std::string, TransitSummary> by_place(const std::vector<TransitInfo>& transits);
/// "3 s", or "3 s to 2 min".
std::string ages(const TransitSummary& waiting);

/// Owners with most memory first; with their command lines.
std::vector<ListedOwner> sorted(std::vector<OwnerInfo> owners);

/// Has it memory, or blocks that other processes may use?
bool shares_something(const OwnerInfo& owner);

/// A line for each, cut to `width` columns, and a line of totals below two and more. REQUIRES: at least one.
std::string owner_table(const std::vector<ListedOwner>& owners, std::size_t width);

/// The details that the table has no room for: the whole command line, memory by device, borrowers, blocks in transit
/// by place. Each line starts with the pid.
std::string owner_details(const ListedOwner& owner);

}  // namespace onecopy::cli
