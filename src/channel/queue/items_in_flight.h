// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "onecopy/memory/block.h"
#include "onecopy/share/stats.h"
#include "os/mutex.h"

namespace onecopy {

/// The items that this process has put into one queue and that are not taken yet. The putter keeps the items' blocks
/// until then.
///
/// Thread safety: all members may be called concurrently. REQUIRES: push() by one thread at a time, in the order of
/// positions, as under the ring's lock for producers. So push() takes no lock: a putter writes behind put_, and a
/// releaser reads before it.
class ItemsInFlight {
 public:
  /// `channel` is the queue's number.
  explicit ItemsInFlight(std::uint64_t channel);
  ~ItemsInFlight() { clear(); }
  ItemsInFlight(const ItemsInFlight&) = delete;
  ItemsInFlight& operator=(const ItemsInFlight&) = delete;

  /// Keeps the blocks of an item before the item can be taken. Throws bad_alloc; then nothing was kept.
  void push(std::uint64_t position, std::span<const BlockRef> blocks);
  void push(std::uint64_t position, BlockRef&& block);
  /// Afterwards the next push() of one block throws nothing. Throws bad_alloc.
  void reserve();
  /// Returns whether the last item kept is this one block: keeping it once more takes no more memory. Under the ring's
  /// lock for producers, as push().
  bool ends_with(std::span<const BlockRef> blocks) const noexcept;
  /// Releases the items before `head`. Returns true while there are others. The watch thread does not wait for
  /// another thread's work: it would hold up a fork.
  bool release_taken(std::uint64_t head, bool may_wait = true) noexcept;
  enum class Blocks : std::uint8_t { borrowed, own, large };
  /// Releases some items, if there is reason to look. Small own blocks stay a little longer: by then the process that
  /// sent them on has let go too, and they are free at once, without a time in limbo.
  template <class Head>
  void release_some(Blocks blocks, Head&& head) noexcept {
    const std::size_t keep = blocks == Blocks::own ? kMany : 0;
    if (size() >= keep + (blocks == Blocks::large ? kManyLarge : kMany)) release_before(head(), keep);
  }
  bool empty() const noexcept { return size() == 0; }
  /// Notes since when the oldest has been there.
  void note_age() noexcept;
  /// Blocks and age, for listings.
  TransitInfo info(std::string where) const;

  // Called around a fork. A child holds nothing: its parent does. Items that a putter was about to push are dropped.
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }
  void clear() noexcept;

 private:
  static constexpr std::size_t kMany = 16;
  static constexpr std::size_t kManyLarge = 3;  ///< so that at most every other put disturbs the getter
  static constexpr std::size_t kAtOnce = 32;

  /// A reference without an owner: a chunk does not release the references in it.
  struct Sent {
    std::uint64_t position;
    BlockGroup* group;
    std::uint32_t number;
  };
  struct Chunk {
    std::array<Sent, 64> items;
    std::unique_ptr<Chunk> next;  ///< made before any item in it counts
  };
  struct Cursor {
    Chunk* chunk;
    std::size_t index;
  };

  std::size_t size() const noexcept {
    const std::size_t taken = taken_.load(std::memory_order_acquire);  // first: it never passes put_
    return put_.load(std::memory_order_acquire) - taken;
  }
  Cursor write(std::uint64_t position, std::span<const BlockRef> blocks);
  void publish(Cursor end, std::span<const BlockRef> blocks) noexcept;
  /// Releases until only `keep` are left.
  void release_before(std::uint64_t head, std::size_t keep) noexcept EXCLUDES(mutex_);
  /// As release_before(); lets go of the lock.
  void release_locked(std::uint64_t head, std::size_t keep) noexcept RELEASE(mutex_);
  /// Releases the items. REQUIRES: they are at most kAtOnce.
  static void release(std::span<const Sent> items) noexcept;
  std::size_t take_out(std::uint64_t head, std::size_t keep, std::span<Sent> taken) noexcept
      REQUIRES(mutex_);
  const Sent* oldest() const noexcept REQUIRES(mutex_);

  const std::uint64_t channel_;
  std::unique_ptr<Chunk> chunks_;  ///< from the oldest item on

  // The putter's.
  Cursor write_;
  std::atomic<std::size_t> put_{0};  ///< blocks ever

  // Of threads that hold the mutex.
  mutable Mutex mutex_;
  Cursor read_ GUARDED_BY(mutex_);
  std::atomic<std::size_t> taken_{0};
  std::uint64_t oldest_ GUARDED_BY(mutex_) = 0;
  std::chrono::steady_clock::time_point oldest_since_ GUARDED_BY(mutex_){};
};

}  // namespace onecopy
