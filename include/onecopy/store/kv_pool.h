// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "onecopy/core/api.h"
#include "onecopy/memory/tensor.h"

ONECOPY_API_BEGIN
namespace onecopy::store {

ONECOPY_CONSTANT std::size_t kMaxKvPoolKey = 32;  ///< the max length of a key in bytes

struct KvPoolStats {
  std::uint32_t blocks = 0;
  std::uint32_t free = 0;       ///< blocks without a lease and without a key
  std::uint32_t idle = 0;       ///< blocks with a key whose entry has no leases, so that it can be evicted
  std::uint32_t users = 0;      ///< the processes that use the KV pool
  std::uint64_t evictions = 0;  ///< entries that were evicted since the KV pool was made
};

/// A row of blocks of writable memory, for KV caches, which all processes of the user share by its name in the
/// store. A process holds leases on blocks. When a process ends, its leases end: the next process that needs the
/// blocks gets them. Blocks with a key stay after that, until their place is needed; the least recently used go first.
///
/// Members throw timeout, with nothing changed, if a process has been stopped in the middle of a call for ten seconds.
///
/// Thread safety: all members may be called concurrently. Copies are the same object. Users must synchronise their
/// accesses to a block. A forked child holds no leases.
class KvPool {
 public:
  /// Returns the numbers of `count` blocks, each with a lease of this process. Their content is undefined. Evicts entries if
  /// there are too few free blocks. Throws out_of_memory with the numbers.
  std::vector<std::uint32_t> allocate(std::uint32_t count);
  /// Adds a lease to each block. Throws invalid_argument, with nothing changed, for a block that no process has leased.
  void share(std::span<const std::uint32_t> numbers);
  /// Ends a lease on each block. Throws invalid_argument, with nothing changed, for a block on which this process has
  /// no lease.
  void release(std::span<const std::uint32_t> numbers);
  /// Makes the blocks, whose content is complete, the entry of a key of 1 to 32 bytes. Returns false if the key has an
  /// entry. Throws invalid_argument, with nothing changed, for blocks that this process has not leased or that have a key.
  bool put(std::string_view key, std::span<const std::uint32_t> numbers);
  /// Removes the entry of a key. Blocks with a lease stay until their leases end. Returns false if the key has no entry.
  bool remove(std::string_view key);
  /// Removes all entries, and returns how many there were.
  std::uint32_t clear();
  /// Returns the blocks of each key, up to the first key without an entry, with a lease on each block.
  std::vector<std::vector<std::uint32_t>> find(std::span<const std::string> keys);
  KvPoolStats stats();
  /// Returns all blocks, one a row of bytes.
  Tensor memory() const;

 private:
  struct State;
  explicit KvPool(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
  State& state() const;

  std::shared_ptr<State> state_;  // shared by copies
  friend class Store;
};

}  // namespace onecopy::store
ONECOPY_API_END
