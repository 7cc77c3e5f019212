// SPDX-License-Identifier: Apache-2.0
// What a process sees of a KV pool without its lock: presence of keys, events and numbers. All of it is a hint.
#include <algorithm>
#include <atomic>

#include "store/client/kv_pool_blocks.h"

namespace onecopy::store {
namespace {

constexpr std::uint32_t kOldWriteMs = 1000;
constexpr int kMaxSteps = 256;  ///< of a bucket that changes while it is read

template <class T>
T load_now(T& at) noexcept {
  return std::atomic_ref<T>(at).load(std::memory_order_acquire);
}

bool is_key(KvRecord& record, const KvKey& key) noexcept {
  for (std::size_t i = 0; i < key.size(); ++i)
    if (load_now(record.key[i]) != key[i]) return false;
  return true;
}

KvPresence presence_of(KvRecord& record) noexcept {
  const KvState state = load_now(record.state);
  if (state == KvState::whole || state == KvState::found) return KvPresence::whole;
  if (state == KvState::writing && kv_now() - load_now(record.stamp) < kOldWriteMs)
    return KvPresence::writing;
  return KvPresence::missing;
}

std::string text_of(const KvKey& key) { return {reinterpret_cast<const char*>(key.data()), sizeof key}; }

}  // namespace

std::uint64_t free_bytes(const KvMemory& memory) noexcept {
  const auto* const extents = memory.header->extents;
  const auto free = std::count_if(extents, extents + memory.geometry.extents,
                                  [](const KvExtent& extent) { return extent.owner == 0; });
  return static_cast<std::uint64_t>(free) * memory.geometry.extent_bytes;
}

std::uint32_t unopened(const KvMemory& memory, std::uint32_t space) noexcept {
  std::uint32_t count = 0;
  for (const KvExtent& one : std::span(memory.header->extents, memory.geometry.extents))
    if (one.owner == space + 1 && one.drains == 0)
      count += memory.header->spaces[space].per_extent - one.open;
  return count;
}

KvPoolStats numbers_of(const KvMemory& memory, std::uint32_t number) noexcept {
  const KvHeader& header = *memory.header;
  const KvSpace& s = header.spaces[number];
  const auto users =
      std::ranges::count_if(header.users, [](const KvUserRow& row) { return row.number.load() != 0; });
  return {.blocks = std::uint64_t{s.extents} * s.per_extent,
          .free = s.free.count + unopened(memory, number),
          .idle = s.whole.count + s.found.count,
          .leased = s.leased,
          .writing = s.writing,
          .users = static_cast<std::uint64_t>(users),
          .hits = s.hits,
          .misses = s.misses,
          .stored = s.stored,
          .evictions = s.evictions,
          .evicted_age_ms = s.evicted_age,
          .growth_waits = s.growth_waits,
          .free_bytes = free_bytes(memory),
          .timeouts = header.timeouts.load(std::memory_order_relaxed),
          .recoveries = header.derives.load(std::memory_order_relaxed)};
}

std::vector<KvPoolStats> KvPoolBlocks::stats_of(const Fd& control) {
  const KvGeometry geometry = geometry_of(control);
  const Mapping bytes = Mapping::of(control, KvMemory::bytes_for(geometry), Access::read_only);
  const KvMemory memory(bytes.data(), geometry);
  std::vector<KvPoolStats> all;
  for (std::uint32_t space = 0; space < kKvSpaces; ++space)
    if (memory.header->spaces[space].per_extent != 0) all.push_back(numbers_of(memory, space));
  return all;
}

std::vector<KvPresence> KvPoolBlocks::contains(std::span<const std::string> keys) const {
  std::vector<KvPresence> all;
  for (const std::string& text : keys) {
    const KvKey key = kv_key(text);
    KvPresence presence = KvPresence::missing;
    std::uint32_t block = load_now(index_.bucket(space_, key));
    for (int step = 0; step < kMaxSteps && index_.is_of(block, space_); ++step) {
      KvRecord& record = index_.record(block);
      if (is_key(record, key)) presence = presence_of(record);
      if (presence != KvPresence::missing) break;
      block = load_now(record.chain);
    }
    all.push_back(presence);
  }
  return all;
}

KvPoolEvents KvPoolBlocks::events(std::uint64_t since) const {
  const auto& count = memory_.header->events;
  const auto first_kept = [&] {
    const std::uint64_t end = count.load(std::memory_order_acquire);
    return end < kKvEvents ? 0 : end - kKvEvents + 1;
  };
  KvPoolEvents all{.next = count.load(std::memory_order_acquire)};
  std::vector<KvEvent> seen;
  const std::uint64_t first = std::min(std::max(since, first_kept()), all.next);
  for (std::uint64_t number = first; number < all.next; ++number)
    seen.push_back(memory_.events[number % kKvEvents]);
  const std::uint64_t kept =
      std::clamp(first_kept(), first, all.next);  // others were overwritten meanwhile
  all.are_missing = kept > since;
  for (std::uint64_t number = kept; number < all.next; ++number)
    if (const KvEvent& event = seen[number - first]; event.space == space_)
      all.events.push_back({event.stored != 0, text_of(event.key)});
  return all;
}

}  // namespace onecopy::store
