// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace onecopy {

/// The counts of this process's copies since the start: from one card to another, and with the host. Thread safety: all
/// counts are atomics; each is read independently.
struct CopyCounts {
  std::atomic<std::uint64_t> direct{0};  ///< the destination card read the other's memory itself
  /// Copies that were left to the driver, which copies through the host.
  std::atomic<std::uint64_t> staged{0};
  std::atomic<std::uint64_t> staged_bytes{0};  ///< the bytes of the staged copies
  std::atomic<std::uint64_t> pageable{0};      ///< copies with host memory that is not pinned
  std::atomic<std::uint64_t> pageable_bytes{0};
  /// The copies with the host across the edge of a pinned range, which were cut into several copies.
  std::atomic<std::uint64_t> cut{0};
};

inline CopyCounts copy_counts;

}  // namespace onecopy
