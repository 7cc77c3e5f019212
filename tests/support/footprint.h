// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <ostream>

namespace onecopy::testing {

/// The resources of this process, compared before and after work that must not leave anything behind.
struct Footprint {
  std::uint64_t descriptors = 0;
  /// The number of lines of /proc/self/maps that belong to onecopy, without timelines: streams may still wait for the
  /// timelines of dead processes, whose 64 KiB stay mapped until this process ends.
  std::uint64_t mappings = 0;
  std::uint64_t foreign_segments = 0;
  std::uint64_t owners = 0;
  std::uint64_t leases = 0;
  std::uint64_t live_blocks = 0;
  std::uint64_t limbo = 0;
  std::uint64_t deposits = 0;

  static Footprint now();
  /// Returns the footprint after all connections to other processes were closed and idle memory was returned.
  static Footprint settled();
  /// Returns the footprint once this number of borrowers is left.
  static Footprint settled_owner(std::uint64_t borrowers = 0);
  /// Returns the footprint once it no longer changes between turns of the watch thread, so that no work is pending.
  static Footprint unchanging();
  bool operator==(const Footprint&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Footprint& footprint);

/// Expects that the footprint equals this one soon, since the watch thread cleans up after dead processes.
void expect_soon(const Footprint& footprint);

/// Returns the size of this process's address space in bytes.
std::uint64_t address_space();
/// Returns all lines of /proc/self/maps.
std::uint64_t count_mappings();
/// Returns the number of entries of a directory, or 0 if it does not exist.
std::uint64_t count_files(const char* directory);

}  // namespace onecopy::testing
