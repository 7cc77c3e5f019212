// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "onecopy/store/kv_pool.h"
#include "os/robust_mutex.h"

namespace onecopy::store {

/// The max number of processes that can use a KV pool at a time.
inline constexpr std::uint32_t kKvPoolUsers = 64;

/// A number that stands for no block.
inline constexpr std::uint32_t kNoBlock = 0xffffffff;

/// The head of a KV pool's control memory.
struct KvPoolHeader {
  struct User {
    std::atomic<std::int32_t> pid;  ///< 0 for a free row; written last
    std::uint64_t start;            ///< process_start_time()
  };
  std::uint64_t magic;
  std::uint64_t block_bytes;
  std::uint32_t blocks, free, idle;
  std::atomic<std::uint32_t> is_changing;
  RobustMutex mutex;
  std::uint64_t stamp, evictions;
  std::int64_t looked_at;  ///< the last search for dead users, in nanoseconds of the steady clock
  /// The namespaces of all users: pids and start times of other namespaces would mean other processes.
  std::uint64_t pid_namespace, time_namespace;
  User users[kKvPoolUsers];
};

/// The state of a block. The first block of an entry has the entry's key.
struct KvPoolBlock {
  std::uint32_t leases;         ///< the sum over all users
  std::uint32_t head;           ///< the first block of the entry that has this block; kNoBlock for none
  std::uint32_t next;           ///< the next block of the entry
  std::uint32_t count;          ///< blocks of the entry that begins here; 0 for none; written last
  std::uint32_t busy;           ///< blocks with leases in the entry that begins here
  std::uint32_t before, after;  ///< neighbours among idle entries
  std::uint32_t chain;          ///< the next entry of the same bucket
  std::uint64_t stamp;          ///< the time at which the entry became idle
  std::uint32_t key_bytes;
  char key[kMaxKvPoolKey];
};

/// The counters and the index of a KV pool, in memory that its processes share.
///
/// Thread safety: all members may be called concurrently, from all processes of one PID and time namespace: one robust
/// mutex in the memory guards all of it. A forked child becomes a user of its own with its first call.
///
/// Invariants. Three things are primary: the leases of each user and block, which only that user or, after its death, a
/// process with the mutex changes; the entries (key, count, and the chain of `next`), where `count` is written last and
/// cleared first; the rows of users, where `pid` is written last and cleared last. All other data (sums of leases,
/// heads, free blocks, buckets, the ring of idle entries) can be derived from them. `is_changing` is set while a holder
/// of the mutex changes anything: a process that gets the mutex and finds the flag set derives the rest anew, because
/// the holder has died.
/// A block is free if it has no lease and is in no entry. An entry is idle if none of its blocks has a lease.
/// All members throw timeout, with nothing changed, if a process that is stopped holds the mutex for `patience`.
/// A dead user's leases end when its row is freed, which any process does that needs blocks.
class KvPoolBlocks {
 public:
  static std::size_t bytes_for(std::uint32_t blocks) noexcept;
  /// Writes the control memory of a KV pool without users. REQUIRES: the memory is zero, and no other process sees it.
  static void init(std::byte* memory, std::uint32_t blocks, std::uint64_t block_bytes);

  /// Ends all leases, and makes the KV pool one of this process's namespaces. Entries stay. Does nothing to a KV pool of these
  /// namespaces, or to other memory. REQUIRES: no other process uses the KV pool.
  static void take_over(std::byte* memory, std::size_t bytes) noexcept;

  /// Attaches to the control memory of a KV pool. The destructor ends this process's leases. Throws bad_handle if the
  /// memory is not a KV pool's, invalid_argument for other sizes, and unsupported in other namespaces than the KV pool's.
  /// REQUIRES: the memory outlives the object.
  KvPoolBlocks(std::byte* memory, std::size_t bytes, std::uint32_t blocks, std::uint64_t block_bytes,
               std::chrono::nanoseconds patience = std::chrono::seconds(10));
  KvPoolBlocks(const KvPoolBlocks&) = delete;
  KvPoolBlocks& operator=(const KvPoolBlocks&) = delete;
  ~KvPoolBlocks();

  std::vector<std::uint32_t> allocate(std::uint32_t count);
  void share(std::span<const std::uint32_t> numbers);
  void release(std::span<const std::uint32_t> numbers);
  bool put(std::string_view key, std::span<const std::uint32_t> numbers);
  bool remove(std::string_view key);
  std::uint32_t clear();
  std::vector<std::vector<std::uint32_t>> find(std::span<const std::string> keys);
  KvPoolStats stats();

 private:
  class Change;

  void check(std::span<const std::uint32_t> numbers) const;
  void check_namespaces() const;
  void attach();
  void lease(std::uint32_t block) noexcept;
  void end_lease(std::uint32_t block) noexcept;
  void make_idle(std::uint32_t head) noexcept;
  void link_idle(std::uint32_t head) noexcept;
  void unlink_idle(std::uint32_t head) noexcept;
  void remove_entry(std::uint32_t head) noexcept;
  std::uint32_t& bucket(std::string_view key) noexcept;
  std::uint32_t entry(std::string_view key) noexcept;
  void make_room(std::uint32_t count);
  void free_row(std::uint32_t user) noexcept;
  void free_rows_of_the_dead();
  void derive();

  std::uint32_t* leases_of(std::uint32_t user) const noexcept {
    return leases_ + std::size_t{user} * header_->blocks;
  }

  const std::chrono::nanoseconds patience_;
  KvPoolHeader* header_;
  /// The blocks, and one entry more, which is the head of the ring of idle entries.
  KvPoolBlock* blocks_;
  std::uint32_t* free_;     ///< a stack of the free blocks
  std::uint32_t* buckets_;  ///< the first entry of each; as many buckets as blocks
  std::uint32_t* leases_;   ///< the leases of each user and block
  int pid_ = 0;             ///< the process to which `user_` belongs
  std::uint32_t user_ = 0;  ///< this process's row in the table of users
  std::uint32_t* mine_ = nullptr;
};

}  // namespace onecopy::store
