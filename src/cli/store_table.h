// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "onecopy/store/store.h"

namespace onecopy::cli {

/// Returns the objects of this user's store; none if there is no keeper. Starts no keeper.
std::vector<store::ObjectInfo> stored_objects();

/// Returns a table with a line for each version, in which * marks the current one. REQUIRES: at least one object.
std::string store_table(const std::vector<store::ObjectInfo>& objects, std::size_t width);

/// Returns how long ago a version was published: "12 min".
std::string age_of(const store::VersionInfo& version);

nlohmann::json json_of(const std::vector<store::ObjectInfo>& objects);

}  // namespace onecopy::cli
