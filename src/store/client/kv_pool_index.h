// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "store/client/kv_pool_memory.h"

namespace onecopy::store {

/// Blocks of an extent that are populated and opened at once.
struct KvPiece {
  std::uint32_t first, count;
};

/// Returns the max number of blocks of a piece, which is populated in less than a millisecond unless one block takes longer.
inline std::uint32_t blocks_of_piece(const KvSpace& space) noexcept {
  constexpr std::uint64_t kPieceBytes = 512 << 10;
  return static_cast<std::uint32_t>(std::max<std::uint64_t>(kPieceBytes / space.block_bytes, 1));
}

/// The bookkeeping of a KV pool in control memory: which extent belongs to which namespace, which block to which key, and
/// which blocks are free or can be evicted.
///
/// Guarantee: after any instruction at which a process dies, derive() restores all that is derived from what is primary:
/// the bits of leases, the owners of extents, and of a block its key, generation and state, which is written last.
/// Mechanism: no member allocates, throws or calls back. Cost: a key costs a walk of its bucket; derive() is linear in the
/// blocks of extents with an owner, and puts idle blocks into the order of their numbers. Thread safety: the caller holds the lock of the KV pool.
class KvIndex {
 public:
  explicit KvIndex(const KvMemory& memory) noexcept : m_(memory) {}

  KvSpace& space(std::uint32_t number) const noexcept { return m_.header->spaces[number]; }
  KvRecord& record(std::uint32_t block) const noexcept { return m_.records[block]; }
  /// Returns whether the block is one of an open extent of the namespace.
  bool is_of(std::uint32_t block, std::uint32_t space) const noexcept;

  /// Returns whether the extent of a block leaves the namespace with its last lease: the block is given no key.
  bool drains(std::uint32_t block) const noexcept { return extent_of(block).drains != 0; }

  /// Returns the first block of the bucket of a key.
  std::uint32_t& bucket(std::uint32_t space, const KvKey& key) const noexcept;
  /// Returns the block of a key; kNoBlock for none.
  std::uint32_t entry(std::uint32_t space, const KvKey& key) const noexcept;
  /// Makes the block that of a key: written by a group, or whole. REQUIRES: the key has no block, the block no key, and its
  /// extent does not drain.
  void insert(std::uint32_t block, const KvKey& key, KvState state, std::uint32_t group = 0) noexcept;
  void remove(std::uint32_t block) noexcept;
  /// Makes a written block visible.
  void finish(std::uint32_t block) noexcept;
  void mark_found(std::uint32_t block) noexcept;

  /// Takes a free block of the namespace for its first user, or evicts one. Returns kNoBlock if there is none.
  std::uint32_t take(std::uint32_t space) noexcept;
  void begin_use(std::uint32_t block) noexcept;
  /// Ends the use of one user. `rests`: a block without a key is not given away for a second.
  void end_use(std::uint32_t block, bool rests = false) noexcept;
  /// Returns how many blocks take() can give.
  std::uint32_t available(std::uint32_t space) const noexcept;

  /// Returns how many blocks of the namespace are pinned.
  std::uint32_t pinned(std::uint32_t space) const noexcept;

  /// Returns the extent from which the namespace gets its next piece: one of its own, or one without an owner; kNoBlock for
  /// none.
  std::uint32_t next_extent(std::uint32_t space) const noexcept;
  /// Returns an extent that now belongs to the namespace and whose next piece `user` populates; kNoBlock for none. Other
  /// namespaces give one if `count` blocks are needed, and none if that is 0.
  std::uint32_t claim(std::uint32_t space, std::uint32_t user, std::uint32_t count) noexcept;
  /// Returns the piece that the grower of an extent populates.
  KvPiece next_piece(std::uint32_t extent) const noexcept;
  /// Returns a user that populates a piece of the namespace, or of an extent that drains; 0 for none.
  std::uint32_t grower(std::uint32_t space) const noexcept;
  /// Opens the pieces that are populated, and gives up those that could not be.
  void open_ready() noexcept;
  void vacate(std::uint32_t extent) noexcept;

  /// Ends the leases of a row, and what its user was writing or populating.
  void end_user(std::uint32_t row) noexcept;
  void derive() noexcept;

 private:
  KvExtent& extent_of(std::uint32_t block) const noexcept {
    return m_.header->extents[block / m_.geometry.records];
  }
  KvSpace& space_of(std::uint32_t block) const noexcept { return space(extent_of(block).owner - 1); }
  KvList& list_of(std::uint32_t block) const noexcept;
  void append(std::uint32_t block) noexcept;
  void unlink(std::uint32_t block) noexcept;
  void make_free(std::uint32_t block) noexcept;
  bool has_rested(std::uint32_t block) const noexcept;
  void log(const KvRecord& record, std::uint32_t space, bool stored) noexcept;
  bool evict(std::uint32_t space) noexcept;
  void open(std::uint32_t extent) noexcept;
  void end_growth(std::uint32_t extent) noexcept;
  void give_up(std::uint32_t extent) noexcept;
  void leave_if_drained(std::uint32_t extent) noexcept;
  std::uint32_t oldest_age(std::uint32_t space) const noexcept;
  bool can_give(std::uint32_t from, std::uint32_t to, std::uint32_t count) const noexcept;
  bool drain_for(std::uint32_t space, std::uint32_t count) noexcept;
  void drain(std::uint32_t extent) noexcept;
  void derive_users() noexcept;
  void derive_extent(std::uint32_t extent) noexcept;

  const KvMemory m_;
};

}  // namespace onecopy::store
