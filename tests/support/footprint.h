// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <ostream>

namespace onecopy::testing {

/// What this process has of the system and of others, to compare before and after something that must
/// leave nothing behind.
struct Footprint {
  std::uint64_t descriptors = 0;
  std::uint64_t mappings = 0;  ///< lines of /proc/self/maps that are onecopy's
  std::uint64_t foreign_segments = 0;
  std::uint64_t owners = 0;
  std::uint64_t leases = 0;
  std::uint64_t live_blocks = 0;
  std::uint64_t limbo = 0;
  std::uint64_t deposits = 0;

  static Footprint now();
  bool operator==(const Footprint&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Footprint& footprint);

/// All lines of /proc/self/maps.
std::uint64_t count_mappings();
/// Entries of a directory; 0 when it is absent.
std::uint64_t count_files(const char* directory);

}  // namespace onecopy::testing
