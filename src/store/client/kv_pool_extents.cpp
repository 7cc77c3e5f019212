// SPDX-License-Identifier: Apache-2.0
// The extents of a KV pool: which namespace gets one, and which one gives one.
#include <algorithm>
#include <atomic>
#include <span>

#include "core/point.h"
#include "store/client/kv_pool_index.h"

namespace onecopy::store {
namespace {

constexpr std::uint32_t kOlderMs =
    1000;  ///< how much longer the entries of the giving namespace were unused

}  // namespace

std::uint32_t KvIndex::claim(std::uint32_t space, std::uint32_t user, std::uint32_t count) noexcept {
  std::uint32_t number = next_extent(space);
  if (number == kNoBlock && count != 0 && this->space(space).extents < this->space(space).max &&
      drain_for(space, count))
    number = next_extent(space);
  if (number == kNoBlock) return kNoBlock;
  KvExtent& extent = m_.header->extents[number];
  const bool is_new = extent.owner == 0;
  if (is_new) extent.drains = extent.leased = extent.idle = extent.open = 0;
  extent.ready.store(0, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  extent.grower = user;
  ++m_.header->growing;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  point("kv_pool.claim.grows");
  if (!is_new) return number;
  extent.owner = space + 1;
  ++this->space(space).extents;
  return number;
}

std::uint32_t KvIndex::grower(std::uint32_t space) const noexcept {
  if (m_.header->growing == 0) return 0;
  const std::span all(m_.header->extents, m_.geometry.extents);
  const auto grows = [space](const KvExtent& one) {
    return one.grower != 0 && one.owner != 0 && (one.owner == space + 1 || one.drains != 0);
  };
  const auto found = std::ranges::find_if(all, grows);
  return found == all.end() ? 0 : found->grower;
}

void KvIndex::open_ready() noexcept {
  if (m_.header->growing == 0) return;
  for (std::uint32_t e = 0; e < m_.geometry.extents; ++e) {
    const KvExtent& extent = m_.header->extents[e];
    if (extent.owner == 0 || extent.grower == 0) continue;
    const std::uint32_t ready = extent.ready.load(std::memory_order_acquire);
    if (ready == 1) open(e);
    if (ready == 2) give_up(e);
  }
}

void KvIndex::end_growth(std::uint32_t extent) noexcept {
  m_.header->extents[extent].grower = 0;
  --m_.header->growing;
  ++m_.header->grown;
}

KvPiece KvIndex::next_piece(std::uint32_t number) const noexcept {
  const KvExtent& extent = m_.header->extents[number];
  const KvSpace& s = space(extent.owner - 1);
  return {number * m_.geometry.records + extent.open,
          std::min(blocks_of_piece(s), s.per_extent - extent.open)};
}

/// Opens the piece that is populated, unless the extent drains. A death in between leaves the piece to be populated again.
void KvIndex::open(std::uint32_t extent) noexcept {
  const auto [first, count] = next_piece(extent);
  end_growth(extent);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  point("kv_pool.extent.opens");
  if (m_.header->extents[extent].drains != 0) return leave_if_drained(extent);
  m_.header->extents[extent].open += count;
  for (std::uint32_t block = first; block < first + count; ++block) append(block);
}

/// Ends the population of a piece. An extent without open blocks leaves its namespace.
void KvIndex::give_up(std::uint32_t extent) noexcept {
  end_growth(extent);
  if (m_.header->extents[extent].open == 0) vacate(extent);
  else leave_if_drained(extent);
}

/// Takes an extent that drains from its namespace, unless a block has a user or one populates a piece.
void KvIndex::leave_if_drained(std::uint32_t extent) noexcept {
  const KvExtent& one = m_.header->extents[extent];
  if (one.drains != 0 && one.leased == 0 && one.grower == 0) vacate(extent);
}

/// Takes an extent without users and keys from its namespace.
void KvIndex::vacate(std::uint32_t number) noexcept {
  KvExtent& extent = m_.header->extents[number];
  --space(extent.owner - 1).extents;
  if (m_.header->draining == number + 1) m_.header->draining = 0;
  extent.owner = 0;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  point("kv_pool.extent.vacated");
  extent.drains = extent.leased = extent.idle = 0;
}

/// Leaves extents without an owner to namespaces that have fewer than their min.
std::uint32_t KvIndex::next_extent(std::uint32_t space) const noexcept {
  const KvSpace& own = this->space(space);
  std::uint32_t kept = 0, found = kNoBlock, count = 0;
  for (std::uint32_t other = 0; other < kKvSpaces; ++other)
    if (const KvSpace& s = this->space(other); other != space && s.min > s.extents)
      kept += s.min - s.extents;
  for (std::uint32_t e = 0; e < m_.geometry.extents; ++e) {
    const KvExtent& one = m_.header->extents[e];
    if (one.owner == 0 && count++ == 0) found = e;
    if (one.owner == space + 1 && one.open < own.per_extent && one.grower == 0 && one.drains == 0) return e;
  }
  return own.extents < own.max && count > kept ? found : kNoBlock;
}

/// Returns how long the idle block that is evicted next has been unused: the max if a free block or none is there.
std::uint32_t KvIndex::oldest_age(std::uint32_t space) const noexcept {
  const KvSpace& s = this->space(space);
  if (s.free.count != 0 || (s.whole.count == 0 && s.found.count == 0)) return ~std::uint32_t{0};
  const KvList& list = s.whole.count != 0 ? s.whole : s.found;
  return kv_now() - m_.records[list.first].stamp;
}

/// Returns whether a namespace gives an extent to another one, which has fewer blocks than it needs or entries that were used
/// later.
bool KvIndex::can_give(std::uint32_t from, std::uint32_t to, std::uint32_t count) const noexcept {
  const KvSpace& s = space(from);
  if (from == to || s.extents <= std::max(s.min, s.leased != 0 ? 1u : 0u)) return false;
  return available(to) < count || oldest_age(from) / 2 > oldest_age(to) / 2 + kOlderMs / 2;
}

/// Begins to drain an extent of the namespace whose entries were unused longest: the one with the fewest leases and keys. One
/// extent drains at a time. Returns whether it has left its namespace.
bool KvIndex::drain_for(std::uint32_t space, std::uint32_t count) noexcept {
  if (m_.header->draining != 0) return false;
  std::uint32_t giver = kNoBlock, best = kNoBlock;
  for (std::uint32_t other = 0; other < kKvSpaces; ++other)
    if (can_give(other, space, count) && (giver == kNoBlock || oldest_age(other) > oldest_age(giver)))
      giver = other;
  if (giver == kNoBlock) return false;
  const KvExtent* const all = m_.header->extents;
  const auto used = [all](std::uint32_t e) { return all[e].leased + all[e].idle; };
  for (std::uint32_t e = 0; e < m_.geometry.extents; ++e)
    if (all[e].owner == giver + 1 && (best == kNoBlock || used(e) < used(best))) best = e;
  if (best != kNoBlock) drain(best);
  return best != kNoBlock && m_.header->draining == 0;
}

/// Removes the keys of an extent, and gives away none of its blocks. It leaves its namespace with its last lease.
void KvIndex::drain(std::uint32_t extent) noexcept {
  const std::uint32_t first = extent * m_.geometry.records;
  const std::uint32_t count = m_.header->extents[extent].open;
  for (std::uint32_t block = first; block < first + count; ++block) {
    if (m_.records[block].state != KvState::none) remove(block);
    if (m_.records[block].users == 0) unlink(block);
    point("kv_pool.drain.block");
  }
  m_.header->extents[extent].drains = 1;
  m_.header->draining = extent + 1;
  leave_if_drained(extent);
}

}  // namespace onecopy::store
