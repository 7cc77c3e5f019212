// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <vector>

#include "onecopy/memory/block.h"
#include "onecopy/share/stats.h"
#include "share/holds.h"

namespace onecopy {

/// What this process has put into one queue and nobody has taken yet. It keeps the blocks until then.
///
/// Thread safety: all members may be called concurrently; push() in the order of positions.
class SentItems {
 public:
  /// Before the item of this position can be taken.
  void push(std::uint64_t position, std::span<const BlockRef> blocks);
  /// Lets go of the items before `head`. True while there are others. The watch thread does not wait
  /// for another thread's work: it would hold up a fork.
  bool release_taken(std::uint64_t head, bool may_wait = true) noexcept;
  /// The same for a few, if there is reason to look.
  template <class Head>
  void release_some(bool large, Head&& head) noexcept {
    if (size_.load(std::memory_order_relaxed) >= (large ? kManyLarge : kMany)) release_taken(head());
  }
  bool empty() const noexcept { return size_.load(std::memory_order_relaxed) == 0; }
  /// Notes since when the oldest has been there.
  void note_age() noexcept;
  /// Blocks and age, for listings.
  TransitInfo info(std::string where) const;

  // Around a fork. A child holds nothing: its parent does.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  void clear() noexcept;

 private:
  static constexpr std::size_t kMany = 16;
  static constexpr std::size_t kManyLarge = 3;  ///< so that at most every other put disturbs the getter

  struct Sent {
    std::uint64_t position;
    BlockRef block;
  };

  mutable std::mutex mutex_;
  std::deque<Sent> items_;
  std::atomic<std::size_t> size_{0};
  std::uint64_t oldest_ = 0;
  Holds::Clock::time_point oldest_since_{};
};

}  // namespace onecopy
