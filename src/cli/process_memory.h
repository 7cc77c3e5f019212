// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace onecopy::cli {

/// The physical memory of a process, as the kernel counts it. A page that n processes have mapped counts 1/n in each,
/// so the sum over all of them is the memory really used.
struct ProcessMemory {
  std::uint64_t pss = 0;
  /// The part that is shared memory.
  std::uint64_t shared = 0;
  /// The part that is files: the program and its libraries, which cost more once others that run them end.
  std::uint64_t files = 0;

  std::uint64_t own() const noexcept { return pss - files; }
  std::uint64_t other() const noexcept { return pss - shared; }
};

/// From /proc/<pid>/smaps_rollup. Throws system.
ProcessMemory memory_of(int pid);

/// The targets of this process's descriptors, sorted.
std::vector<std::string> open_descriptors();

}  // namespace onecopy::cli
