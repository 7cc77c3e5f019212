// SPDX-License-Identifier: Apache-2.0
// New blocks of a KV pool: allocate() and write(), and the extents that they populate.
#include <algorithm>
#include <atomic>
#include <thread>

#include <fmt/format.h>

#include "core/point.h"
#include "store/client/kv_pool_blocks.h"
#include "store/client/kv_pool_change.h"

namespace onecopy::store {

/// Returns an extent that this process populates to have `count` free blocks; kNoBlock if there are enough, or for none.
std::uint32_t KvPoolBlocks::claim_for(std::uint32_t count) noexcept {
  if (space().free.count >= count) return kNoBlock;
  const std::uint32_t extent = index_.claim(space_, user_->id(), count);
  if (extent == kNoBlock && index_.available(space_) < count) end_the_dead(true);
  return extent;
}

/// Populates an extent, and returns whether the system had memory. The next holder of the lock opens the extent.
bool KvPoolBlocks::grow(std::uint32_t extent) {
  const bool is_there = !populate_ || populate_(extent);
  point("kv_pool.grown");
  memory_.header->extents[extent].ready.store(is_there ? 1 : 2, std::memory_order_release);
  return is_there;
}

/// Returns whether another user populates an extent of the namespace, which lacks blocks until then. A user for which this
/// process has waited in vain until `until` is stopped, and is not waited for again.
bool KvPoolBlocks::waits_for_growth(std::uint32_t count, Deadline until) noexcept {
  if (index_.available(space_) >= count) return false;
  const std::uint32_t grower = index_.grower(space_);
  if (grower == 0) own().slow_grower = 0;
  if (grower == own().slow_grower) return false;
  if (!until.has_passed()) return true;
  own().slow_grower = grower;
  return false;
}

/// Calls `take` under the lock, once there are `wanted()` free blocks or no memory for more. Extents are populated without the
/// lock. Returns false if a stopped user has the lock.
template <class Wanted, class Take>
bool KvPoolBlocks::with_blocks(const Wanted& wanted, const Take& take) {
  constexpr std::chrono::milliseconds kPause{1};
  const Deadline until = Deadline::after(kMaxGrowth * patience_);
  for (bool may_grow = true;;) {
    std::uint32_t extent = kNoBlock;
    {
      const Change change(*this);
      if (!change) return false;
      end_the_dead(false);
      const std::uint32_t count = wanted();
      const bool lacks = space().free.count < count;
      if (lacks) index_.open_ready();
      const bool waits = lacks && waits_for_growth(count, until);
      if (may_grow && !waits) extent = claim_for(count);
      if (extent == kNoBlock && !waits) {
        take();
        return true;
      }
    }
    if (extent == kNoBlock) std::this_thread::sleep_for(kPause);
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
          count, s.extents * s.per_extent, s.free.count, s.whole.count + s.found.count, s.leased,
          free_bytes(memory_)));
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
