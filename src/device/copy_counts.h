// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace onecopy {

/// Counts of this process's copies since the start: from one card to another, and with the host. Thread safety: all
/// counts are atomics; each is read independently.
struct CopyCounts {
  std::atomic<std::uint64_t> direct{0};        ///< the destination card read the other's memory itself
  std::atomic<std::uint64_t> staged{0};        ///< left to the driver, which copies through the host
  std::atomic<std::uint64_t> staged_bytes{0};  ///< bytes of the staged copies
  std::atomic<std::uint64_t> pageable{0};      ///< with host memory that is not pinned
  std::atomic<std::uint64_t> pageable_bytes{0};
  std::atomic<std::uint64_t> cut{
      0};  ///< with the host, across the edge of a pinned range: cut into several copies
};

inline CopyCounts copy_counts;

}  // namespace onecopy
