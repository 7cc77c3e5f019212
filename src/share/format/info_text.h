// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "onecopy/share/stats.h"
#include "share/format/stats_fields.h"

namespace onecopy {

/// Returns the JSON in which a process describes itself to `onecopy ls`, which prints it with `--format json`.
/// Other releases can read it.
std::string to_json(const OwnerInfo& info);
/// Reads the JSON of to_json(). Missing fields are zero; unknown ones are skipped. Throws protocol if the text is not
/// JSON.
OwnerInfo owner_from_json(const std::string& text);

}  // namespace onecopy
