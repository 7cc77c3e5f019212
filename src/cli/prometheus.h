// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "owner_table.h"

namespace onecopy::cli {

/// Returns the numbers of all owners in the text format of Prometheus, with the names of `onecopy.stats()` behind
/// `onecopy_`, and how many processes did not answer. Counters end in `_total`.
std::string prometheus_text(const std::vector<ListedOwner>& owners, std::size_t silent);

}  // namespace onecopy::cli
