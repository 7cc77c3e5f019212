// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "onecopy/core/api.h"
#include "onecopy/core/device.h"
#include "onecopy/device/stream.h"
#include "onecopy/memory/tensor.h"

ONECOPY_API_BEGIN
namespace onecopy::store {

/// The arguments with which a process opens a KV pool.
struct KvPoolOptions {
  std::uint64_t block_bytes = 0;
  /// The bytes of all blocks of the KV pool, for the process that makes it. 0: open it only. Memory of the host is allocated
  /// when blocks are needed.
  std::uint64_t budget = 0;
  /// A namespace: processes with the same name share keys, blocks of one size and their content. Others share the budget.
  std::string space{};
  std::uint32_t parts = 1;  ///< 1 to 64: how many parts of a block are completed before find() sees it
  std::uint64_t extent_bytes =
      0;  ///< the unit in which namespaces get memory. 0: the budget / 256, 64 MiB to 1 GiB
  std::uint64_t min_bytes = 0;  ///< bytes that other namespaces leave to this one
  std::uint64_t max_bytes = 0;  ///< the max bytes of this namespace; 0 for all
  Device device = kCpu;
  /// Pins memory of the host for a card as long as this process has the KV pool open; allocates all of it.
  bool pinned = false;
  /// Makes the memory of the host of files in the store's directory, which must lie on tmpfs: keys and blocks stay when all
  /// processes and the keeper are killed. Takes effect for the process that makes the KV pool.
  bool outlives_keeper = false;
};

struct KvPoolStats {
  std::uint64_t blocks = 0;     ///< of this namespace, which the budget can still increase
  std::uint64_t free = 0;       ///< blocks without a lease and without a key
  std::uint64_t idle = 0;       ///< blocks with a key and without a lease, which can be evicted
  std::uint64_t leased = 0;     ///< blocks with a lease
  std::uint64_t writing = 0;    ///< leased blocks with a key of which parts are missing
  std::uint64_t users = 0;      ///< the processes that use the KV pool, whatever their namespace
  std::uint64_t hits = 0;       ///< keys that find() has found
  std::uint64_t misses = 0;     ///< keys at which find() has found nothing
  std::uint64_t stored = 0;     ///< keys that became visible
  std::uint64_t evictions = 0;  ///< keys that made room for others
  std::uint64_t evicted_age_ms =
      0;  ///< the time between the last use of the key that was evicted last, and its eviction
  std::uint64_t growth_waits =
      0;  ///< calls of allocate() and write() that waited until the system had allocated memory
  std::uint64_t free_bytes = 0;  ///< bytes of the budget that no namespace has
  std::uint64_t timeouts = 0;    ///< calls that gave up since a process was stopped in the middle of one
  std::uint64_t recoveries = 0;  ///< processes that died in the middle of a call
  std::uint64_t files_removed =
      0;  ///< 1 if files of a KV pool with outlives_keeper are gone; only Store::kv_pool_stats() says it
};

/// A key that became visible, or went.
struct KvPoolEvent {
  bool stored = false;
  std::string key;  ///< 32 bytes: the key, or the digest of a key of another length
};

struct KvPoolEvents {
  std::uint64_t next = 0;    ///< the argument of the next call
  bool are_missing = false;  ///< events between the calls were overwritten
  std::vector<KvPoolEvent> events{};
};

enum class KvPresence : std::uint8_t { missing, writing, whole };

/// Rows in memory of the host or of a device, such as the blocks of one layer of an engine's cache.
struct KvRows {
  std::byte* data = nullptr;
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;   ///< of a row
  std::uint64_t stride = 0;  ///< bytes from one row to the next
  Device device = kCpu;
  Stream stream{};  ///< of the device, for its copies
};

/// Blocks of writable memory for KV caches, which all processes of the user share by a name in the store, within one budget
/// of bytes. A process holds leases on blocks. When a process ends, its leases end, and what it was writing goes. A block
/// with a key stays after that, until its place is needed: first the blocks that nobody has found, then the least recently
/// used ones. A key is found once its block is complete, and never before.
///
/// A process that was stopped in the middle of a call delays others for 50 ms. After that, as long as that process stays
/// stopped, find() finds nothing, put(), write() and complete() store nothing, allocate() throws out_of_memory, release() takes effect
/// later, and other members throw timeout.
///
/// Thread safety: all members may be called concurrently. Copies are the same object. Users must synchronise their
/// accesses to a block. A forked child holds no leases.
class KvPool {
 public:
  /// Returns the numbers of `count` blocks without keys, each with a lease of this process. Their content is undefined.
  /// Evicts entries if the budget is used up. Throws out_of_memory with the numbers.
  std::vector<std::uint32_t> allocate(std::uint32_t count);
  /// Ends a lease on each block. Throws invalid_argument, with nothing changed, for a block on which this process has
  /// no lease.
  void release(std::span<const std::uint32_t> numbers);
  /// Gives a block, whose content is complete, a key. Returns false if the key has a block, or another namespace gets the
  /// memory of the block when its lease ends. Throws invalid_argument for a block that this process has not leased or that
  /// has a key.
  bool put(std::string_view key, std::uint32_t number);

  /// Begins to write the blocks of keys, or takes part in the writing of a group, a number that an engine gives all its
  /// processes. Returns a leased block for each key; none for a key that has a block or that another group writes, and if
  /// there is no room.
  std::vector<std::optional<std::uint32_t>> write(std::span<const std::string> keys, std::uint32_t group);
  /// Marks a part of blocks as complete. The last part makes the key visible. Has no effect on a block whose key is gone.
  void complete(std::span<const std::uint32_t> numbers, std::uint32_t part = 0);
  /// Takes the keys of blocks that are being written. Leases stay.
  void fail(std::span<const std::uint32_t> numbers);

  /// Returns a ticket for each leased block: its number, and how often the block was given away.
  std::vector<std::uint64_t> tickets(std::span<const std::uint32_t> numbers);
  /// Leases the blocks of tickets of another process, and returns their numbers. A process joins before it copies. Throws
  /// stale_handle, with nothing changed, if a block was freed or given away since the ticket was made.
  std::vector<std::uint32_t> join(std::span<const std::uint64_t> tickets);

  /// Leases and returns the blocks of keys, up to the first key that is missing.
  std::vector<std::uint32_t> find(std::span<const std::string> keys);
  /// Leases and returns the block of each key that has one.
  std::vector<std::optional<std::uint32_t>> find_all(std::span<const std::string> keys);
  /// Returns what the KV pool has of each key, without a lease or a lock: a hint. A block that has been written for more
  /// than a second is missing.
  std::vector<KvPresence> contains(std::span<const std::string> keys) const;
  /// Keeps keys from eviction for that many seconds, also when this process ends. Returns how many keys there were. Throws
  /// out_of_memory if more than a quarter of the namespace's blocks were pinned.
  std::uint32_t pin(std::span<const std::string> keys, std::uint32_t seconds);
  /// Removes a key. Its block is free when the leases end. Returns false if the key has no block.
  bool remove(std::string_view key);
  /// Removes all keys of the namespace, and returns how many there were.
  std::uint32_t clear();
  /// Returns the events of the namespace since an earlier call; 0 for all that are known.
  KvPoolEvents events(std::uint64_t since = 0) const;
  KvPoolStats stats();

  /// Copies rows of an array into blocks or out of them, at that offset of each block. Throws invalid_argument for blocks
  /// without a lease and places that do not fit. Copies between a card and pinned memory go in one batch of the driver, after
  /// the work in the stream, and this function does not wait for them. REQUIRES: the leases last until the copies are done.
  void copy_blocks(std::span<const std::uint32_t> numbers, std::span<const std::uint32_t> rows,
                   const KvRows& array, std::uint64_t offset, bool to_pool);
  /// Returns where a block begins in memory().
  std::uint64_t offset(std::uint32_t number) const;
  std::uint64_t block_bytes() const;
  /// Returns the bytes of all namespaces.
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
