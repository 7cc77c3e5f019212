// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "share/borrower/deposits.h"
#include "share/owner/transits.h"

namespace onecopy {

/// How long a block that was in a dead process's item stays held after the item was taken, since the receiver may
/// still be reading the item. Tests lower it.
inline std::atomic<int> after_transit_ms{5'000};

/// What a dead borrower left in queues: blocks that its claim page holds until their receivers have them.
///
/// Thread safety: used by one thread, but for blocks() and age(), which others may call meanwhile.
class Orphan {
 public:
  using Clock = std::chrono::steady_clock;

  Orphan(std::size_t blocks, const Transits& transits);

  std::size_t blocks() const noexcept { return blocks_; }
  std::chrono::duration<double> age() const noexcept { return Clock::now() - since_; }
  /// The receivers have it all, or have had the time. In which queues it is the borrower has noted; those that are
  /// open here tell how far they have come.
  bool is_delivered(const Deposits& deposits);

 private:
  bool has_passed_all(const Deposits& deposits);

  const std::size_t blocks_;
  const Clock::time_point since_ = Clock::now();
  bool knows_queues_ = false;
  /// The queues whose items are not all taken yet, with the number of items put before its death.
  std::map<std::uint64_t, std::optional<std::uint64_t>> waiting_for_;
  std::optional<Clock::time_point> taken_;  ///< since when all are
};

}  // namespace onecopy
