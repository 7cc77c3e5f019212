// SPDX-License-Identifier: Apache-2.0
#include "store/client/kv_pool_blocks.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include <fmt/format.h>

#include "core/point.h"
#include "core/throw_error.h"
#include "store/client/kv_pool_change.h"

namespace onecopy::store {
namespace {

[[noreturn]] void refuse(std::uint32_t block, const char* what) {
  throw_error(ErrorCode::invalid_argument, "block {} {}", block, what);
}

[[noreturn]] void throw_stopped(ErrorCode code) {
  throw Error(code, "a process of the KV pool is stopped in the middle of a call: let it go on, or end it");
}

std::vector<KvKey> keys_of(std::span<const std::string> texts) {
  std::vector<KvKey> keys;
  keys.reserve(texts.size());
  for (const std::string& text : texts) keys.push_back(kv_key(text));
  return keys;
}

}  // namespace

/// Returns whether this user may lease that many more blocks: beside others, no user leases more than half of the budget, or
/// eight blocks if half is less.
bool KvPoolBlocks::has_share(std::uint64_t blocks) noexcept {
  constexpr std::uint64_t kAlways = 8;
  const KvGeometry& g = memory_.geometry;
  const std::uint64_t wants =
      memory_.header->users[own().row - 1].leased_bytes + blocks * space().block_bytes;
  const std::uint64_t share = std::max(g.extents * g.extent_bytes / 2, kAlways * space().block_bytes);
  if (wants <= share || users() < 2) return true;
  end_the_dead(true);
  return users() < 2;
}

/// Leases a block. Sets the bit of this user first: if the process dies in between, the lease ends with it.
void KvPoolBlocks::lease(std::uint32_t block) noexcept {
  if (mine()[block]++ != 0) return;
  memory_.bits(own().row - 1)[block / 64] |= std::uint64_t{1} << block % 64;
  memory_.header->users[own().row - 1].leased_bytes += space().block_bytes;
  point("kv_pool.leased");
  index_.begin_use(block);
}

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

void KvPoolBlocks::check_mine(std::uint32_t number, const char* what) const {
  if (number >= memory_.geometry.blocks())
    throw_error(ErrorCode::invalid_argument, "the KV pool has {} blocks, and {} is none of them",
                memory_.geometry.blocks(), number);
  if (mine()[number] == 0) refuse(number, what);
}

void KvPoolBlocks::check_leased(std::span<const std::uint32_t> numbers) {
  const LockGuard lock(own().mutex);
  for (const std::uint32_t number : numbers)
    check_mine(number, "is used, and this process has not leased it");
}

/// Ends a lease on each block: in this process at once, and for others with the next call that gets the lock.
void KvPoolBlocks::release(std::span<const std::uint32_t> numbers) {
  {
    const LockGuard lock(own().mutex);
    const std::uint32_t owed_before = own().owed;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (numbers[i] < memory_.geometry.blocks() && mine()[numbers[i]] != 0) {
        if (--mine()[numbers[i]] == 0) owed()[own().owed++] = numbers[i];
        continue;
      }
      for (const std::uint32_t before : numbers.first(i)) ++mine()[before];
      own().owed = owed_before;
      if (numbers[i] >= memory_.geometry.blocks()) check_mine(numbers[i], "");
      refuse(numbers[i], "is released more often than this process has leased it");
    }
  }
  point("kv_pool.release.counted");
  const Change change(*this);
}

bool KvPoolBlocks::put(std::string_view key, std::uint32_t number) {
  const KvKey name = kv_key(key);
  const Change change(*this);
  check_mine(number, "is put, and this process has not leased it");
  if (!change) return false;
  if (index_.record(number).state != KvState::none) refuse(number, "is put, and has a key already");
  if (index_.entry(space_, name) != kNoBlock) return false;
  index_.insert(number, name, KvState::whole);
  return true;
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

void KvPoolBlocks::complete(std::span<const std::uint32_t> numbers, std::uint32_t part) {
  const std::uint32_t parts = space().parts;
  if (part >= parts)
    throw_error(ErrorCode::invalid_argument, "a block has {} parts, and {} is none of them", parts, part);
  const Change change(*this);
  for (const std::uint32_t number : numbers)
    check_mine(number, "is completed, and this process has not leased it");
  if (!change) return;
  for (const std::uint32_t number : numbers) {
    KvRecord& r = index_.record(number);
    if (r.state != KvState::writing) continue;
    (part < 32 ? r.before : r.after) |= 1u << part % 32;
    const std::uint64_t all = r.before | std::uint64_t{r.after} << 32;
    point("kv_pool.complete.marked");
    if (all == ~std::uint64_t{0} >> (64 - parts)) index_.finish(number);
  }
}

void KvPoolBlocks::fail(std::span<const std::uint32_t> numbers) {
  const Change change(*this);
  for (const std::uint32_t number : numbers)
    check_mine(number, "is given up, and this process has not leased it");
  if (!change) throw_stopped(ErrorCode::timeout);
  for (const std::uint32_t number : numbers)
    if (index_.record(number).state == KvState::writing) index_.remove(number);
}

std::vector<std::uint64_t> KvPoolBlocks::tickets(std::span<const std::uint32_t> numbers) {
  const LockGuard lock(own().mutex);
  std::vector<std::uint64_t> all;
  for (const std::uint32_t number : numbers) {
    check_mine(number, "is to be joined, and this process has not leased it");
    all.push_back(std::uint64_t{index_.record(number).generation} << 32 | number);
  }
  return all;
}

std::vector<std::uint32_t> KvPoolBlocks::join(std::span<const std::uint64_t> tickets) {
  std::vector<std::uint32_t> numbers;
  for (const std::uint64_t ticket : tickets) numbers.push_back(static_cast<std::uint32_t>(ticket));
  const Change change(*this);
  if (!change) throw_stopped(ErrorCode::timeout);
  for (const std::uint64_t ticket : tickets) {
    const auto number = static_cast<std::uint32_t>(ticket);
    if (!index_.is_of(number, space_))
      throw_error(ErrorCode::stale_handle, "the namespace has no block {} any longer", number);
    const KvRecord& r = index_.record(number);
    if (r.generation != ticket >> 32 || (r.users == 0 && r.state == KvState::none))
      throw_error(ErrorCode::stale_handle,
                  "block {} was given away: the process that sent the ticket has ended or released it",
                  number);
  }
  for (const std::uint32_t number : numbers) lease(number);
  return numbers;
}

std::vector<std::optional<std::uint32_t>> KvPoolBlocks::find(std::span<const std::string> texts, bool all) {
  const std::vector<KvKey> keys = keys_of(texts);
  std::vector<std::optional<std::uint32_t>> found;
  found.reserve(keys.size());
  const Change change(*this);
  for (const KvKey& key : keys) {
    const std::uint32_t block = change ? index_.entry(space_, key) : kNoBlock;
    const bool is_there =
        block != kNoBlock && index_.record(block).state != KvState::writing && has_share(1);
    if (!is_there && change) ++space().misses;
    if (!is_there && !all) break;
    found.push_back(is_there ? std::optional(block) : std::nullopt);
    if (!is_there) continue;
    lease(block);
    index_.mark_found(block);
    ++space().hits;
    point("kv_pool.find.leased");
  }
  return found;
}

std::uint32_t KvPoolBlocks::pin(std::span<const std::string> texts, std::uint32_t seconds) {
  const std::vector<KvKey> keys = keys_of(texts);
  const Change change(*this);
  if (!change) throw_stopped(ErrorCode::timeout);
  std::vector<std::uint32_t> blocks;
  for (const KvKey& key : keys)
    if (const std::uint32_t block = index_.entry(space_, key);
        block != kNoBlock && index_.record(block).state != KvState::writing)
      blocks.push_back(block);
  const std::uint32_t most = space().extents * space().per_extent / 4;
  if (seconds != 0 && blocks.size() + index_.pinned(space_) > most)
    throw_error(ErrorCode::out_of_memory,
                "{} blocks are to be pinned; {} are, and at most {} of the namespace may be", blocks.size(),
                index_.pinned(space_), most);
  for (const std::uint32_t block : blocks)
    index_.record(block).group = seconds == 0 ? 0 : kv_seconds() + seconds;
  return static_cast<std::uint32_t>(blocks.size());
}

bool KvPoolBlocks::remove(std::string_view key) {
  const KvKey name = kv_key(key);
  const Change change(*this);
  if (!change) throw_stopped(ErrorCode::timeout);
  const std::uint32_t block = index_.entry(space_, name);
  if (block != kNoBlock) index_.remove(block);
  return block != kNoBlock;
}

std::uint32_t KvPoolBlocks::clear() {
  const Change change(*this);
  if (!change) throw_stopped(ErrorCode::timeout);
  std::uint32_t entries = 0;
  for (std::uint32_t block = 0; block < memory_.geometry.blocks(); ++block) {
    if (!index_.is_of(block, space_) || index_.record(block).state == KvState::none) continue;
    index_.remove(block);
    ++entries;
  }
  return entries;
}

KvPoolStats KvPoolBlocks::stats() {
  const Change change(*this);
  if (!change) throw_stopped(ErrorCode::timeout);
  end_the_dead(true);
  index_.open_ready();
  return numbers_of(memory_, space_);
}

}  // namespace onecopy::store
