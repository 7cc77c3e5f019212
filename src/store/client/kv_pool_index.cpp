// SPDX-License-Identifier: Apache-2.0
#include "store/client/kv_pool_index.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <utility>

#include "core/point.h"

namespace onecopy::store {
namespace {

constexpr std::uint32_t kRestMs = 1000;

void written() noexcept { std::atomic_signal_fence(std::memory_order_seq_cst); }

bool has_key(const KvRecord& record) noexcept { return record.state != KvState::none; }

bool is_pinned(const KvRecord& record) noexcept { return record.group > kv_seconds(); }

}  // namespace

bool KvIndex::is_of(std::uint32_t block, std::uint32_t space) const noexcept {
  if (block >= m_.geometry.blocks()) return false;
  const KvExtent& extent = extent_of(block);
  return extent.owner == space + 1 && block % m_.geometry.records < extent.open;
}

std::uint32_t& KvIndex::bucket(std::uint32_t space, const KvKey& key) const noexcept {
  std::uint64_t hash = space;
  for (const std::uint32_t word : key) hash = (hash ^ word) * 0x9e3779b97f4a7c15;
  return m_.buckets[(hash >> 32) % m_.geometry.blocks()];
}

std::uint32_t KvIndex::entry(std::uint32_t space, const KvKey& key) const noexcept {
  std::uint32_t block = bucket(space, key);
  while (block != kNoBlock && (m_.records[block].key != key || extent_of(block).owner != space + 1))
    block = m_.records[block].chain;
  return block;
}

void KvIndex::insert(std::uint32_t block, const KvKey& key, KvState state, std::uint32_t group) noexcept {
  KvRecord& r = m_.records[block];
  const std::uint32_t space = extent_of(block).owner - 1;
  r.key = key;
  r.group = group;
  r.stamp = kv_now();
  r.before = r.after = 0;
  r.chain = std::exchange(bucket(space, key), block);
  written();
  point("kv_pool.insert.written");
  r.state = state;
  if (state == KvState::writing) ++space_of(block).writing;
  else log(r, space, true);
  point("kv_pool.insert.done");
}

void KvIndex::finish(std::uint32_t block) noexcept {
  KvRecord& r = m_.records[block];
  r.group = 0;
  written();
  point("kv_pool.finish.written");
  r.state = KvState::whole;
  --space_of(block).writing;
  log(r, extent_of(block).owner - 1, true);
}

void KvIndex::mark_found(std::uint32_t block) noexcept { m_.records[block].state = KvState::found; }

/// Removes the key of a block, which is free if it has no user.
void KvIndex::remove(std::uint32_t block) noexcept {
  KvRecord& r = m_.records[block];
  const std::uint32_t space = extent_of(block).owner - 1;
  if (r.users == 0 && r.state != KvState::writing) unlink(block);
  if (r.state == KvState::writing) --this->space(space).writing;
  else log(r, space, false);
  std::uint32_t* at = &bucket(space, r.key);
  while (*at != block) at = &m_.records[*at].chain;
  *at = r.chain;
  point("kv_pool.remove.unlinked");
  r.state = KvState::none;
  r.group = 0;
  point("kv_pool.remove.gone");
  if (r.users == 0) make_free(block);
}

void KvIndex::log(const KvRecord& record, std::uint32_t space, bool stored) noexcept {
  const std::uint64_t number = m_.header->events.load(std::memory_order_relaxed);
  m_.events[number % kKvEvents] = {stored, space, record.key};
  m_.header->events.store(number + 1, std::memory_order_release);
  if (stored) ++this->space(space).stored;
}

KvList& KvIndex::list_of(std::uint32_t block) const noexcept {
  const KvRecord& r = m_.records[block];
  KvSpace& s = space_of(block);
  if (r.state == KvState::whole) return s.whole;
  if (r.state == KvState::found) return s.found;
  return r.rests ? s.resting : s.free;
}

void KvIndex::append(std::uint32_t block) noexcept {
  KvList& list = list_of(block);
  KvRecord& r = m_.records[block];
  r.after = kNoBlock;
  r.before = std::exchange(list.last, block);
  (r.before == kNoBlock ? list.first : m_.records[r.before].after) = block;
  ++list.count;
  if (has_key(r)) ++extent_of(block).idle;
}

void KvIndex::unlink(std::uint32_t block) noexcept {
  KvList& list = list_of(block);
  const KvRecord& r = m_.records[block];
  (r.before == kNoBlock ? list.first : m_.records[r.before].after) = r.after;
  (r.after == kNoBlock ? list.last : m_.records[r.after].before) = r.before;
  --list.count;
  if (has_key(r)) --extent_of(block).idle;
}

void KvIndex::make_free(std::uint32_t block) noexcept {
  KvExtent& extent = extent_of(block);
  if (extent.drains == 0) return append(block);
  m_.records[block].rests = false;
  leave_if_drained(block / m_.geometry.records);
}

void KvIndex::begin_use(std::uint32_t block) noexcept {
  if (m_.records[block].users++ != 0) return;
  unlink(block);
  m_.records[block].rests = false;
  ++extent_of(block).leased;
  ++space_of(block).leased;
}

void KvIndex::end_use(std::uint32_t block, bool rests) noexcept {
  KvRecord& r = m_.records[block];
  if (--r.users != 0) return;
  --extent_of(block).leased;
  --space_of(block).leased;
  r.stamp = kv_now();
  if (r.state != KvState::whole && r.state != KvState::found) r.rests = rests;
  if (r.state == KvState::none) make_free(block);
  else if (r.state == KvState::writing) remove(block);
  else append(block);
}

std::uint32_t KvIndex::available(std::uint32_t space) const noexcept {
  const KvSpace& s = this->space(space);
  std::uint32_t count = s.free.count + s.whole.count + s.found.count;
  for (std::uint32_t b = s.resting.first; b != kNoBlock && has_rested(b); b = m_.records[b].after) ++count;
  return count;
}

bool KvIndex::has_rested(std::uint32_t block) const noexcept {
  return kv_now() - m_.records[block].stamp >= kRestMs;
}

std::uint32_t KvIndex::pinned(std::uint32_t space) const noexcept {
  std::uint32_t count = 0;
  for (std::uint32_t block = 0; block < m_.geometry.blocks(); ++block)
    if (is_of(block, space) && m_.records[block].state >= KvState::whole)
      count += is_pinned(m_.records[block]);
  return count;
}

std::uint32_t KvIndex::take(std::uint32_t space) noexcept {
  KvSpace& s = this->space(space);
  while (s.resting.count != 0 && has_rested(s.resting.first)) {
    const std::uint32_t rested = s.resting.first;
    unlink(rested);
    m_.records[rested].rests = false;
    append(rested);
  }
  if (s.free.count == 0 && !evict(space)) return kNoBlock;
  ++m_.records[s.free.first].generation;
  return s.free.first;
}

/// Removes the key of the idle block that was used least recently, first of those that nobody has found. Moves pinned blocks
/// to the end of their list.
bool KvIndex::evict(std::uint32_t space) noexcept {
  KvSpace& s = this->space(space);
  for (KvList* const list : {&s.whole, &s.found})
    for (std::uint32_t left = list->count; left != 0; --left) {
      const std::uint32_t block = list->first;
      if (is_pinned(m_.records[block])) {
        unlink(block);
        append(block);
        continue;
      }
      s.evicted_age = kv_now() - m_.records[block].stamp;
      ++s.evictions;
      remove(block);
      return true;
    }
  return false;
}

void KvIndex::end_user(std::uint32_t row) noexcept {
  KvUserRow& user = m_.header->users[row];
  const std::uint32_t number = user.number.load(std::memory_order_relaxed);
  std::uint64_t* const bits = m_.bits(row);
  for (std::uint32_t word = 0; word < (m_.geometry.blocks() + 63) / 64; ++word)
    while (bits[word] != 0) {
      const std::uint32_t block = word * 64 + static_cast<std::uint32_t>(std::countr_zero(bits[word]));
      bits[word] &= bits[word] - 1;
      point("kv_pool.dead.counted");
      if (m_.records[block].state == KvState::writing) remove(block);
      end_use(block, user.copies_from_card != 0);
    }
  for (std::uint32_t extent = 0; extent < m_.geometry.extents; ++extent)
    if (const KvExtent& one = m_.header->extents[extent]; one.owner != 0 && one.grower == number)
      give_up(extent);
  user.leased_bytes = 0;
  written();
  user.number.store(0, std::memory_order_relaxed);
}

/// Derives what is not primary.
void KvIndex::derive() noexcept {
  std::fill_n(m_.buckets, m_.geometry.blocks(), kNoBlock);
  for (KvSpace& s : m_.header->spaces) {
    s.free = s.resting = s.whole = s.found = {kNoBlock, kNoBlock, 0};
    s.extents = s.leased = s.writing = 0;
  }
  m_.header->draining = m_.header->growing = 0;
  for (std::uint32_t e = 0; e < m_.geometry.extents; ++e)
    if (m_.header->extents[e].owner != 0)
      for (std::uint32_t i = 0; i < m_.geometry.records; ++i)
        m_.records[e * m_.geometry.records + i].users = 0;
  derive_users();
  for (std::uint32_t e = 0; e < m_.geometry.extents; ++e)
    if (m_.header->extents[e].owner != 0) derive_extent(e);
}

void KvIndex::derive_users() noexcept {
  for (std::uint32_t row = 0; row < kKvUsers; ++row) {
    if (m_.header->users[row].number.load(std::memory_order_relaxed) == 0) continue;
    const std::uint64_t* const bits = m_.bits(row);
    for (std::uint32_t word = 0; word < (m_.geometry.blocks() + 63) / 64; ++word)
      for (std::uint64_t left = bits[word]; left != 0; left &= left - 1)
        ++m_.records[word * 64 + static_cast<std::uint32_t>(std::countr_zero(left))].users;
  }
}

void KvIndex::derive_extent(std::uint32_t number) noexcept {
  KvExtent& extent = m_.header->extents[number];
  const std::uint32_t owner = extent.owner - 1;
  KvSpace& s = space(owner);
  ++s.extents;
  extent.leased = extent.idle = 0;
  m_.header->growing += extent.grower != 0;
  const std::uint32_t first = number * m_.geometry.records;
  for (std::uint32_t block = first; block < first + extent.open; ++block) {
    KvRecord& r = m_.records[block];
    if (r.users == 0 && (r.state == KvState::writing || extent.drains != 0)) r.state = KvState::none;
    if (has_key(r)) r.chain = std::exchange(bucket(owner, r.key), block);
    s.writing += r.state == KvState::writing;
    s.leased += r.users != 0;
    extent.leased += r.users != 0;
    if (r.users == 0 && extent.drains == 0) append(block);
  }
  if (extent.drains == 0) return;
  m_.header->draining = number + 1;
  leave_if_drained(number);
}

}  // namespace onecopy::store
