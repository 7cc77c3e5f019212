// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace onecopy::cli {

/// The physical memory of a process, as the kernel counts it. A page that n processes have mapped counts as 1/n in
/// each, so the sum over all processes is the memory really in use.
struct ProcessMemory {
  std::uint64_t pss = 0;
  /// The part that is shared memory.
  std::uint64_t shared = 0;
  /// The part that is files: the program and its libraries, whose share grows when other processes that run them end.
  std::uint64_t files = 0;

  std::uint64_t own() const noexcept { return pss - files; }
  std::uint64_t other() const noexcept { return pss - shared; }
};

/// Reads /proc/<pid>/smaps_rollup. Throws system.
ProcessMemory memory_of(int pid);

/// Returns the targets of this process's descriptors, sorted.
std::vector<std::string> open_descriptors();

}  // namespace onecopy::cli
