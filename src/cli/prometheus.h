// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "owner_table.h"
#include "store_table.h"

namespace onecopy::cli {

/// Returns the numbers of all owners in the text format of Prometheus, with the names of `onecopy.stats()` behind
/// `onecopy_`, how many processes did not answer, and the version of the command. Counters end in `_total`.
std::string prometheus_text(const std::vector<ListedOwner>& owners, std::size_t silent,
                            const std::string& version);
/// Returns whether the store has a keeper, and the numbers of each object.
std::string prometheus_text(const StoreState& state);

}  // namespace onecopy::cli
