// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "share/borrower/local_queues.h"
#include "share/owner/transit_counts.h"

namespace onecopy {

/// How long a block of a dead process's item stays held after the item was taken. The receiver may still be reading
/// the item. Tests lower it.
inline std::atomic<int> after_transit_ms{5'000};

/// Blocks of a dead borrower's items that are still in queues. Its claim page holds them until their receivers have
/// them.
///
/// Thread safety: used by one thread, but for blocks() and age(), which other threads may call meanwhile.
class UndeliveredItems {
 public:
  using Clock = std::chrono::steady_clock;

  UndeliveredItems(std::size_t blocks, const TransitCounts& transits);

  std::size_t blocks() const noexcept { return blocks_; }
  std::chrono::duration<double> age() const noexcept { return Clock::now() - since_; }
  /// True if the receivers have all blocks, or have had the time. The borrower has noted its queues; queues that are
  /// open here tell how far they have come.
  bool are_delivered(const LocalQueues& queues);

 private:
  const std::size_t blocks_;
  const Clock::time_point since_ = Clock::now();
  bool knows_queues_ = false;
  /// The queues whose items are not all taken yet, with the ends that they had at the first look.
  std::map<std::uint64_t, QueueMark> waiting_for_;
  std::optional<Clock::time_point> taken_;  ///< since when all items are taken
};

}  // namespace onecopy
