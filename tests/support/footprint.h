// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <ostream>

namespace onecopy::testing {

/// The resources of this process, to compare before and after work that must leave nothing behind.
struct Footprint {
  std::uint64_t descriptors = 0;
  /// Lines of /proc/self/maps that are onecopy's, but for timelines: streams may wait for those of the dead, and
  /// their 64 KiB stay until this process ends.
  std::uint64_t mappings = 0;
  std::uint64_t foreign_segments = 0;
  std::uint64_t owners = 0;
  std::uint64_t leases = 0;
  std::uint64_t live_blocks = 0;
  std::uint64_t limbo = 0;
  std::uint64_t deposits = 0;

  static Footprint now();
  /// Once all that it had to do with others has ended, and idle memory is given back.
  static Footprint settled();
  /// The footprint of a process that others borrow from, or did: so many of them are left.
  static Footprint settled_owner(std::uint64_t borrowers = 0);
  /// Once it is equal turn after turn of the watch thread: no work is under way.
  static Footprint unchanging();
  bool operator==(const Footprint&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Footprint& footprint);

/// It is like this again, soon: the watch thread does the work that others' deaths leave.
void expect_soon(const Footprint& footprint);

/// Of addresses, in bytes.
std::uint64_t address_space();
/// All lines of /proc/self/maps.
std::uint64_t count_mappings();
/// Entries of a directory; 0 when it is absent.
std::uint64_t count_files(const char* directory);

}  // namespace onecopy::testing
