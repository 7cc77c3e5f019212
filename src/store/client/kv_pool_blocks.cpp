// SPDX-License-Identifier: Apache-2.0
#include "store/client/kv_pool_blocks.h"

#include <algorithm>

#include "core/point.h"
#include "core/throw_error.h"
#include "store/client/kv_pool_change.h"

namespace onecopy::store {
namespace {

[[noreturn]] void refuse(std::uint32_t block, const char* what) {
  throw_error(ErrorCode::invalid_argument, "block {} {}", block, what);
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
  if (index_.entry(space_, name) != kNoBlock || index_.drains(number)) return false;
  index_.insert(number, name, KvState::whole);
  return true;
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
