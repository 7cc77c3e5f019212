// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace onecopy {

/// The ways of this process's copies since the start: copies from one card to another, and copies with the host.
/// Thread safety: as of atomics; each is read by itself.
struct CopyCounts {
  std::atomic<std::uint64_t> direct{0};  ///< the card that is written to read the other's memory itself
  std::atomic<std::uint64_t> staged{0};  ///< left to the driver, which goes by way of the host
  std::atomic<std::uint64_t> staged_bytes{0};  ///< of those
  std::atomic<std::uint64_t> pageable{0};      ///< with the host, from or to memory that is not pinned
  std::atomic<std::uint64_t> pageable_bytes{0};
  std::atomic<std::uint64_t> cut{0};  ///< with the host, over an edge of a pinned range: several copies
};

inline CopyCounts copy_counts;

}  // namespace onecopy
