// SPDX-License-Identifier: Apache-2.0
#include "support/footprint.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "onecopy/share/stats.h"

namespace onecopy::testing {
namespace {

std::uint64_t count_lines(const char* part) {
  std::ifstream maps("/proc/self/maps");
  std::uint64_t lines = 0;
  for (std::string line; std::getline(maps, line);) lines += line.find(part) != std::string::npos;
  return lines;
}

}  // namespace

Footprint Footprint::now() {
  const Stats s = stats();
  return {s.descriptors,
          count_lines("onecopy-"),
          s.foreign_segments,
          s.owners,
          s.leases,
          s.live_blocks,
          s.limbo,
          s.deposits};
}

std::ostream& operator<<(std::ostream& out, const Footprint& f) {
  return out << "{descriptors " << f.descriptors << ", mappings " << f.mappings << ", foreign segments "
             << f.foreign_segments << ", owners " << f.owners << ", leases " << f.leases << ", live blocks "
             << f.live_blocks << ", limbo " << f.limbo << ", deposits " << f.deposits << "}";
}

std::uint64_t count_mappings() { return count_lines(""); }

std::uint64_t count_files(const char* directory) {
  std::error_code absent;
  std::uint64_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory, absent)) {
    (void)entry;
    ++files;
  }
  return files;
}

}  // namespace onecopy::testing
