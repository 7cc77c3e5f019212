// SPDX-License-Identifier: Apache-2.0
// New blocks of a KV pool: allocate() and write(), and the memory that they and a thread populate.
#include <algorithm>
#include <atomic>
#include <thread>

#include <fmt/format.h>

#include "core/point.h"
#include "store/client/kv_pool_blocks.h"
#include "store/client/kv_pool_change.h"

namespace onecopy::store {
namespace {

constexpr std::chrono::microseconds kGrowthPause{200};
constexpr std::uint32_t kAskForMemoryMs = 1000;  ///< after the system had no memory

}  // namespace

/// Returns an extent of which this process populates a piece to have `count` free blocks; kNoBlock for none.
std::uint32_t KvPoolBlocks::claim_for(std::uint32_t count) noexcept {
  const std::uint32_t extent = index_.claim(space_, user_->id(), count);
  if (extent == kNoBlock && index_.available(space_) < count) end_the_dead(true);
  return extent;
}

/// Populates a piece of an extent, and returns whether the system had memory. The next holder of the lock opens the piece.
bool KvPoolBlocks::grow(std::uint32_t extent) {
  const KvGeometry& g = memory_.geometry;
  const std::uint64_t size = space().block_bytes;
  const auto [first, count] = index_.next_piece(extent);
  const bool is_there =
      !populate_ || populate_(extent * g.extent_bytes + first % g.records * size, count * size);
  point("kv_pool.grown");
  memory_.header->extents[extent].ready.store(is_there ? 1 : 2, std::memory_order_release);
  return is_there;
}

/// Returns whether a user populates a piece of the namespace. Another user is stopped, and is not waited for again, if no piece
/// was completed since then: for the patience, and longer if the namespace has not `count` blocks without that piece.
bool KvPoolBlocks::waits_for_growth(std::uint32_t count,
                                    std::chrono::steady_clock::time_point since) noexcept {
  const std::uint32_t grower = index_.grower(space_);
  if (grower == 0) own().slow_grower = 0;
  if (grower == own().slow_grower) return false;
  const int times = index_.available(space_) >= count ? 1 : kMaxGrowth;
  if (grower == user_->id() || std::chrono::steady_clock::now() - since < times * patience_) return true;
  own().slow_grower = grower;
  return false;
}

/// Returns whether the growth thread is to populate a piece before a call needs it: of a new extent if fewer blocks are free
/// than half of its blocks, and then, if `goes_on`, all of the extent. An extent of one piece is left to the calls.
bool KvPoolBlocks::lacks_memory_ahead(bool goes_on) const noexcept {
  const KvSpace& s = space();
  const bool is_low = s.free.count < s.per_extent / 2;
  if (!populate_ || blocks_of_piece(s) >= s.per_extent || (!is_low && !goes_on)) return false;
  if (kv_now() - refused_at_ < kAskForMemoryMs) return false;
  const std::uint32_t next = index_.next_extent(space_), grower = index_.grower(space_);
  if (next == kNoBlock || (grower != 0 && grower != own().slow_grower)) return false;
  return is_low || memory_.header->extents[next].owner != 0;
}

/// Populates a piece that no namespace has if memory ahead is lacking, and requests the next run. Runs in the growth thread.
void KvPoolBlocks::grow_ahead() {
  std::uint32_t extent = kNoBlock;
  {
    const Change change(*this);
    if (!change) return;
    index_.open_ready();
    if (!lacks_memory_ahead(true)) return;
    extent = index_.claim(space_, user_->id(), 0);
  }
  if (grow(extent)) growth_->request();
  else refused_at_ = kv_now();
}

/// Calls `take` under the lock, once there are `wanted()` free blocks or no memory for more. Memory is populated without the
/// lock, piece by piece. Returns false if a stopped user has the lock.
template <class Wanted, class Take>
bool KvPoolBlocks::with_blocks(const Wanted& wanted, const Take& take) {
  std::uint32_t grown = 0;
  std::chrono::steady_clock::time_point since;
  for (bool may_grow = true, has_waited = false;; has_waited = true) {
    std::uint32_t extent = kNoBlock;
    bool waits = false, is_low = false;
    {
      const Change change(*this);
      if (!change) return false;
      end_the_dead(false);
      const std::uint32_t count = wanted();
      if (space().free.count < count) index_.open_ready();
      const bool lacks = space().free.count < count;
      if (lacks && (!has_waited || grown != memory_.header->grown)) {
        grown = memory_.header->grown;
        since = std::chrono::steady_clock::now();
      }
      if (lacks && may_grow && !waits_for_growth(count, since)) extent = claim_for(count);
      waits = lacks && extent == kNoBlock && waits_for_growth(count, since);
      if (extent == kNoBlock && !waits) {
        if (has_waited && populate_) ++space().growth_waits;
        take();
        is_low = !lacks && lacks_memory_ahead(false);
      }
    }
    if (is_low) growth_->request();
    if (extent == kNoBlock && !waits) return true;
    if (waits) std::this_thread::sleep_for(kGrowthPause);
    else may_grow = grow(extent);
  }
}

std::vector<std::uint32_t> KvPoolBlocks::allocate(std::uint32_t count) {
  std::vector<std::uint32_t> numbers(count);
  if (!with_blocks([&] { return count; }, [&] { take_all(numbers); }))
    throw_stopped(ErrorCode::out_of_memory);
  return numbers;
}

/// Leases a block for each number. Throws out_of_memory, with no lease, if there are not as many for this user.
void KvPoolBlocks::take_all(std::span<std::uint32_t> numbers) {
  const auto count = static_cast<std::uint32_t>(numbers.size());
  if (!has_share(count))
    throw Error(ErrorCode::out_of_memory, "one process may lease half of a KV pool that others use, too");
  std::size_t taken = 0;
  while (taken < count && index_.available(space_) >= count - taken) {
    const std::uint32_t block = index_.take(space_);
    if (block == kNoBlock) break;  // the entries are pinned
    lease(numbers[taken++] = block);
  }
  if (taken == count) return;
  for (const std::uint32_t block : numbers.first(taken)) {
    mine()[block] = 0;
    owed()[own().owed++] = block;
  }
  return_owed();
  const KvSpace& s = space();
  throw Error(
      ErrorCode::out_of_memory,
      fmt::format(
          "{} blocks are wanted; of {} are {} free, {} have keys and can be evicted unless they are "
          "pinned, and {} are leased; {} bytes of the budget are free",
          count, s.extents * s.per_extent - unopened(memory_, space_), s.free.count,
          s.whole.count + s.found.count, s.leased, free_bytes(memory_)));
}

std::uint32_t KvPoolBlocks::missing(std::span<const KvKey> keys) const noexcept {
  return static_cast<std::uint32_t>(std::ranges::count_if(
      keys, [this](const KvKey& key) { return index_.entry(space_, key) == kNoBlock; }));
}

std::optional<std::uint32_t> KvPoolBlocks::write_one(const KvKey& key, std::uint32_t group) noexcept {
  std::uint32_t block = index_.entry(space_, key);
  if (block != kNoBlock) {
    const KvRecord& r = index_.record(block);
    if (r.state != KvState::writing || r.group != group) return {};
    lease(block);
    return block;
  }
  if (!has_share(1) || (block = index_.take(space_)) == kNoBlock) return {};
  lease(block);
  index_.insert(block, key, KvState::writing, group);
  return block;
}

std::vector<std::optional<std::uint32_t>> KvPoolBlocks::write(std::span<const std::string> texts,
                                                              std::uint32_t group) {
  const std::vector<KvKey> keys = keys_of(texts);
  std::vector<std::optional<std::uint32_t>> numbers(keys.size());
  with_blocks([&] { return missing(keys); },
              [&] {
                for (std::size_t i = 0; i < keys.size(); ++i) numbers[i] = write_one(keys[i], group);
              });
  return numbers;
}

}  // namespace onecopy::store
