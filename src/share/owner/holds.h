// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "onecopy/memory/block.h"
#include "os/mutex.h"

namespace onecopy {

/// Blocks kept for handles that were written down to travel (pickled, sent by other means) and have not been opened
/// yet. The first opener's acknowledgement ends a hold, or time does. A permanent hold is not ended by time: its
/// handle waits in a channel that may be read at any time.
///
/// Thread safety: all members may be called concurrently.
class Holds {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::minutes kLifetime{10};

  enum class Until : std::uint8_t { opened_or_late, opened };

  /// Returns the nonce that ends the hold; never 0. Time does not end a hold that lasts until its handle is opened.
  std::uint64_t add(BlockRef block, Clock::time_point now = Clock::now(),
                    Until until = Until::opened_or_late);
  void end(std::uint64_t nonce) noexcept;
  /// From now on time does not end this hold. Has no effect if it is over.
  void make_permanent(std::uint64_t nonce) noexcept;
  /// Ends holds that are older than kLifetime and do not last. Returns when time will end the next one, if any.
  std::optional<Clock::duration> expire(Clock::time_point now = Clock::now()) noexcept;
  /// Ends all holds that were made at that time or before.
  void end_older(Clock::time_point than) noexcept;
  /// Is the block held for a handle?
  bool contain(const BlockRef& block) const noexcept;
  /// When each hold was made.
  std::vector<Clock::time_point> list() const;

  // Around a fork; a child holds nothing for others.
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }
  void clear() noexcept;

 private:
  struct Hold {
    BlockRef block;
    Clock::time_point since;
    bool lasts = false;
  };
  template <typename IsOver>
  void end_those(IsOver is_over) noexcept;
  std::uint64_t take_nonce() REQUIRES(mutex_);

  mutable Mutex mutex_;
  /// A map of nodes, which move without an allocation: a hold ends also where memory is short.
  std::map<std::uint64_t, Hold> holds_ GUARDED_BY(mutex_);
  std::array<std::uint64_t, 64> nonces_
      GUARDED_BY(mutex_){};  ///< from the kernel, which is asked for many at once
  std::size_t nonces_left_ GUARDED_BY(mutex_) = 0;
};

}  // namespace onecopy
