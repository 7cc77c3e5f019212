// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>

namespace onecopy {

/// One allocation in the block table of an owner.
struct BlockName {
  std::uint32_t block = 0;
  std::uint64_t generation = 0;
  auto operator<=>(const BlockName&) const = default;
};

}  // namespace onecopy
