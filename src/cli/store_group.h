// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "commands.h"
#include "store/group/config.h"

namespace onecopy::cli {

/// The options of `store serve` about a group.
struct GroupOptions {
  std::string group, name, address, rack, state, ca_file, login_file;
  std::vector<std::string> endpoints;
};
/// Adds them to a command that has --listen. REQUIRES: `options` lives as long as the parser.
void add_group_options(CLI::App& serve, GroupOptions& options);
/// Returns the group that this host is to join; nothing without --group. `at`: where this host listens. Throws invalid_argument for
/// options that do not fit, and unsupported without libcurl.
std::optional<store::group::Config> group_config(const GroupOptions& options, const std::string& at);

/// Prints a line for each host of the group, and what it has of an object.
int list_hosts(const std::string& object);

}  // namespace onecopy::cli
