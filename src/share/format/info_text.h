// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "onecopy/share/stats.h"

namespace onecopy {

/// How a process describes itself to `onecopy ls`, which prints it with `--format json`: the one JSON of an owner.
/// Other releases can read it.
std::string to_json(const OwnerInfo& info);
/// Missing fields are zero, unknown ones are skipped. Throws protocol if it is not JSON.
OwnerInfo owner_from_json(const std::string& text);

}  // namespace onecopy
