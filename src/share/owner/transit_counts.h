// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

namespace onecopy {

/// A borrower's items in queues: how many items of each block, and which queues. It lies in the borrower's claim
/// page, beside the claims, and outlives it (see Ledger::leave_in_transit).
///
/// Thread safety: the borrower's threads may call all members concurrently; the owner reads once the borrower is
/// gone. A queue is noted before the item is counted, and never forgotten. It stands at the place that its number
/// says, which is random, or at the first free one behind.
class TransitCounts {
 public:
  using Count = std::atomic<std::uint32_t>;
  using Word = std::atomic<std::uint64_t>;
  static constexpr std::size_t kQueues = 511;
  static constexpr std::size_t kWords = kQueues + 1;  ///< the last one says that there were more

  TransitCounts() = default;
  TransitCounts(Count* counts, Word* channels) noexcept : counts_(counts), channels_(channels) {}

  void begin(std::uint32_t block, std::uint64_t channel) noexcept {
    if (channels_[channel % kQueues].load(std::memory_order_relaxed) != channel) note(channel);
    counts_[block].fetch_add(1);
  }
  /// A forked child's page starts at 0. The transits that its parent had begun are the parent's to end.
  void end(std::uint32_t block) noexcept {
    if (counts_[block].load() != 0) counts_[block].fetch_sub(1);
  }
  std::uint32_t items(std::uint32_t block) const noexcept { return counts_[block].load(); }
  /// The queues; empty if they were too many to be noted.
  std::optional<std::vector<std::uint64_t>> channels() const;

 private:
  void note(std::uint64_t channel) noexcept;

  Count* counts_ = nullptr;
  Word* channels_ = nullptr;
};

}  // namespace onecopy
