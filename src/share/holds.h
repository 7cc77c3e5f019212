// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "onecopy/memory/block.h"

namespace onecopy {

/// Blocks kept for handles that were written down to travel (pickled, sent by other means) and have
/// not been opened yet. The first opener's acknowledgement ends a hold, time ends the others.
///
/// Thread safety: all members may be called concurrently.
class Holds {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::minutes kLifetime{10};

  /// Returns the nonce that ends the hold; never 0.
  std::uint64_t add(BlockRef block, Clock::time_point now = Clock::now());
  void end(std::uint64_t nonce) noexcept;
  /// Ends what is older than kLifetime. True while there are holds.
  bool expire(Clock::time_point now = Clock::now()) noexcept;
  /// When each hold was made.
  std::vector<Clock::time_point> list() const;

  // Around a fork; a child holds nothing for others.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  void clear() noexcept;

 private:
  struct Hold {
    BlockRef block;
    Clock::time_point since;
  };
  mutable std::mutex mutex_;
  std::map<std::uint64_t, Hold> holds_;
};

}  // namespace onecopy
