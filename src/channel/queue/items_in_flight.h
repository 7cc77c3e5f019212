// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "channel/ring/ring.h"
#include "onecopy/memory/block.h"
#include "onecopy/share/stats.h"
#include "os/mutex.h"

namespace onecopy {

/// The items that this process has put into one queue and that are not taken yet. The putter keeps the items' blocks
/// until then.
///
/// Thread safety: all members may be called concurrently. REQUIRES: push() by one thread at a time, in the order of
/// positions, as under the ring's lock for producers. So push() takes no lock: a putter writes after put_, and a thread
/// that releases reads before put_.
class ItemsInFlight {
 public:
  /// Constructs an empty list of items in `ring`. `channel` is the queue's number.
  ItemsInFlight(const Ring& ring, std::uint64_t channel);
  ~ItemsInFlight() { clear(); }

  /// Keeps the blocks of an item, before the item can be taken. Throws bad_alloc, after which nothing was kept.
  void push(std::uint64_t position, std::span<const BlockRef> blocks);
  void push(std::uint64_t position, BlockRef&& block);
  /// Makes room, so that the next push() of one block does not throw. Throws bad_alloc.
  void reserve();
  /// Returns whether the last item that was kept is this single block, so that keeping it again takes no more memory.
  /// REQUIRES: the ring's lock for producers, as push().
  bool ends_with(std::span<const BlockRef> blocks) const noexcept;
  /// Releases the items before `head`. Returns true while there are others. The watch thread passes false for
  /// `may_wait`: waiting for another thread's work would delay a fork.
  bool release_taken(std::uint64_t head, bool may_wait = true) noexcept;
  enum class Blocks : std::uint8_t { borrowed, own, large };
  /// Releases some taken items, if it is time to look. Keeps small own blocks a little longer, until their receiver has
  /// released them as well, so that they become free at once and never enter limbo.
  void release_some(Blocks blocks) noexcept;
  bool empty() const noexcept { return size() == 0; }
  /// Notes the time since which the oldest item has been there.
  void note_age() noexcept;
  /// Returns the number of blocks and their age, for listings.
  TransitInfo info(std::string where) const;

  // The fork handlers call the following members. A child keeps no blocks, since its parent does. Items that a putter
  // was about to push are dropped.
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }
  void clear() noexcept;

 private:
  static constexpr std::size_t kAtOnce = 32;

  /// A reference that its destructor does not release: a chunk may contain released ones.
  struct Sent {
    std::uint64_t position;
    BlockGroup* group;
    std::uint32_t number;
  };
  struct Chunk {
    std::array<Sent, 64> items;
    std::unique_ptr<Chunk> next;  ///< made before an item in it counts
  };
  struct Cursor {
    Chunk* chunk;
    std::size_t index;
  };

  std::size_t size() const noexcept {
    // Read first, because taken_ never passes put_.
    const std::size_t taken = taken_.load(std::memory_order_acquire);
    return put_.load(std::memory_order_acquire) - taken;
  }
  Cursor write(std::uint64_t position, std::span<const BlockRef> blocks);
  void publish(Cursor end, std::span<const BlockRef> blocks) noexcept;
  /// Releases items before `head` until only `keep` are left.
  void release_before(std::uint64_t head, std::size_t keep) noexcept EXCLUDES(mutex_);
  /// Does what release_before() does, and releases the lock.
  void release_locked(std::uint64_t head, std::size_t keep) noexcept RELEASE(mutex_);
  /// Releases the items. REQUIRES: they are at most kAtOnce.
  static void release(std::span<const Sent> items) noexcept;
  std::size_t take_out(std::uint64_t head, std::size_t keep, std::span<Sent> taken) noexcept
      REQUIRES(mutex_);
  const Sent* oldest() const noexcept REQUIRES(mutex_);

  const Ring& ring_;
  const std::uint64_t channel_;
  std::unique_ptr<Chunk> chunks_;  ///< begins with the chunk of the oldest item

  // Only the putter uses write_.
  Cursor write_;
  std::atomic<std::size_t> put_{0};  ///< the number of blocks ever put

  // Threads that hold the mutex use the following members.
  mutable Mutex mutex_;
  Cursor read_ GUARDED_BY(mutex_);
  std::atomic<std::size_t> taken_{0};
  std::uint64_t oldest_ GUARDED_BY(mutex_) = 0;
  std::chrono::steady_clock::time_point oldest_since_ GUARDED_BY(mutex_){};
};

}  // namespace onecopy
