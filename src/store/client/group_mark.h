// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "store/client/client.h"

namespace onecopy::store {

/// Returns the path of a file in the keeper's directory that is about one object.
std::string file_about(const std::string& home, const char* what, const std::string& name);

/// Returns whether the versions of an object come from a group of hosts.
bool is_of_group(Client& client, const std::string& name);
/// Notes that the versions of an object come from a group of hosts.
void mark_as_of_group(const std::string& home, const std::string& name);
/// Throws invalid_argument for an object of a group, which `what_to_do` changes on all hosts.
void check_not_of_group(Client& client, const std::string& name, const char* what_to_do);

}  // namespace onecopy::store
