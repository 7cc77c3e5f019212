// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "report_page.h"

namespace onecopy::cli {

/// Memory of each owner over time, as SVG: the largest owners, and the sum of all. REQUIRES: at least one moment.
std::string memory_chart(const std::vector<Moment>& past);

/// Owners to the left, borrowers to the right, a line for each pair with borrowed blocks, as SVG. Empty if no process
/// has a block of another.
std::string borrowing_map(const Look& look);

}  // namespace onecopy::cli
