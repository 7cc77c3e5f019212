// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace onecopy {

/// Names a segment: public name of its owner, and its number there.
using SegmentKey = std::pair<std::string, std::uint32_t>;

}  // namespace onecopy
