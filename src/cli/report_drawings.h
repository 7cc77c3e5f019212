// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "report_page.h"

namespace onecopy::cli {

/// Draws the memory of the largest owners over time, and the sum of all, as SVG. REQUIRES: at least one moment.
std::string memory_chart(const std::vector<Moment>& past);

/// Draws owners to the left, borrowers to the right, and a line for each pair with borrowed blocks, as SVG. Returns
/// nothing if no process holds a block of another.
std::string borrowing_map(const Look& look);

}  // namespace onecopy::cli
