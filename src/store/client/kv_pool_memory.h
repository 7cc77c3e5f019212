// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "onecopy/store/kv_pool.h"
#include "store/client/kv_pool_user.h"

namespace onecopy::store {

// The control memory of a KV pool, which all its processes map: a KvHeader, the ring of events, a KvRecord for each block
// that the extents can have, the buckets of the index, and a row of bits for each user.

inline constexpr std::uint32_t kKvUsers = 256, kKvSpaces = 64, kKvExtents = 1024, kKvEvents = 16384;
/// A number that stands for no block.
inline constexpr std::uint32_t kNoBlock = 0xffffffff;

using KvKey = std::array<std::uint32_t, 8>;

/// The division of a KV pool's memory.
struct KvGeometry {
  std::uint32_t extents = 0;
  std::uint32_t records = 0;  ///< the max number of blocks of an extent
  std::uint64_t extent_bytes = 0;

  std::uint32_t blocks() const noexcept { return extents * records; }
  bool operator==(const KvGeometry&) const = default;
};

enum class KvState : std::uint8_t {
  none,     ///< has no key: free, resting, or leased by the users that allocated or joined the block
  writing,  ///< has a key that find() does not see, since parts are missing
  whole,    ///< has a key that nobody has found yet
  found,    ///< has a key that was found
};

/// The state of a block. A block of `none` without users is in the list of free or resting blocks, and one with a key and
/// without users in a list of idle blocks; a block with users is in no list.
struct KvRecord {
  KvKey key;
  std::uint32_t before,
      after;            ///< neighbours in a list; while the block is written: a bit for each complete part
  std::uint32_t chain;  ///< the next block of the same bucket
  std::uint32_t stamp;  ///< when the last lease or the writing began or ended, in milliseconds
  std::uint32_t generation;  ///< incremented each time the block is given away
  std::uint32_t group;  ///< the group that writes the block; then the end of a pin in seconds, 0 for none
  std::uint16_t users;  ///< the number of users with a lease
  KvState state;
  bool rests;  ///< the block is in the list of resting blocks
};

struct KvList {
  std::uint32_t first, last, count;
};

/// A namespace: blocks of one size, and keys that mean the same bytes.
struct KvSpace {
  KvKey name;  ///< its digest
  std::uint64_t block_bytes;
  std::uint32_t per_extent;  ///< blocks of an extent; 0 for a free row
  std::uint32_t parts;
  std::uint32_t serial;             ///< incremented when the row becomes another namespace
  std::uint32_t extents, min, max;  ///< extents that the namespace has, keeps, and may have
  KvList free, resting, whole, found;
  std::uint32_t leased, writing;
  std::uint32_t
      evicted_age;  ///< milliseconds between the last use and the eviction of the entry that went last
  std::uint64_t hits, misses, stored, evictions, growth_waits;
};

struct KvExtent {
  std::uint32_t owner;         ///< 1 + the number of the namespace; 0 for none
  std::uint32_t open;          ///< the first blocks, which have memory; the others follow piece by piece
  std::uint32_t grower;        ///< the user that populates the next piece; 0 for none
  std::uint32_t leased, idle;  ///< blocks with a lease, and blocks with a key that can be evicted
  std::uint32_t drains;        ///< 1: gives no blocks, and leaves its namespace with the last lease
  /// A word of the grower, which has no lock then: 1 once the memory is there, 2 if the system has none.
  std::atomic<std::uint32_t> ready;
};

struct KvUserRow {
  std::atomic<std::uint32_t> number;  ///< KvUser::id(); 0 for a free row; written last
  std::uint32_t
      copies_from_card;  ///< blocks that the user leaves behind rest, since a card may still write to them
  std::uint64_t leased_bytes;
};

struct KvEvent {
  std::uint32_t stored, space;
  KvKey key;
};

struct KvHeader {
  std::uint64_t magic;
  KvGeometry geometry;
  KvLockWord lock;
  std::atomic<std::uint32_t> is_changing, next_user;
  std::uint32_t looked_at;  ///< the last search for dead users, in milliseconds
  std::uint32_t draining;   ///< 1 + the extent that drains; 0 for none
  std::uint32_t growing;    ///< extents with a grower
  std::uint32_t grown;      ///< pieces whose population has ended
  std::atomic<std::uint64_t> events, timeouts, derives;
  KvUserRow users[kKvUsers];
  KvSpace spaces[kKvSpaces];
  KvExtent extents[kKvExtents];
};

/// Pointers to the parts of control memory.
struct KvMemory {
  KvMemory(std::byte* memory, const KvGeometry& geometry) noexcept;
  static std::size_t bytes_for(const KvGeometry& geometry) noexcept;
  std::uint64_t* bits(std::uint32_t row) const noexcept {
    return leases + std::size_t{row} * ((geometry.blocks() + 63) / 64);
  }

  KvGeometry geometry;
  KvHeader* header;
  KvEvent* events;
  KvRecord* records;
  std::uint32_t* buckets;  ///< as many as blocks
  std::uint64_t* leases;   ///< a bit for each user and block: the user has at least one lease
};

/// Returns a key of 32 bytes as it is, and the digest of any other key.
KvKey kv_key(std::string_view key) noexcept;
KvPoolStats numbers_of(const KvMemory& memory, std::uint32_t space) noexcept;
/// Returns how many blocks of the namespace's extents have no memory yet.
std::uint32_t unopened(const KvMemory& memory, std::uint32_t space) noexcept;
/// Returns the bytes of extents without an owner.
std::uint64_t free_bytes(const KvMemory& memory) noexcept;
/// Returns milliseconds of the system's clock, which all time namespaces share. They begin again at 0 after 49 days.
std::uint32_t kv_now() noexcept;
/// Returns seconds of the system's clock.
std::uint32_t kv_seconds() noexcept;

}  // namespace onecopy::store
