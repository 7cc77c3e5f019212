// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "onecopy/store/kv_pool.h"
#include "os/fd.h"
#include "os/mapping.h"
#include "os/mutex.h"
#include "os/worker.h"
#include "store/client/kv_pool_index.h"

namespace onecopy::store {

/// Allocates the memory of a range of the blocks; returns false if the system has none.
using KvPopulate = std::function<bool(std::uint64_t offset, std::uint64_t bytes)>;

/// A namespace of a KV pool as one process uses it: its leases, and the lock around KvIndex.
///
/// Guarantee: a block that a living process has leased is never given away, and a key that is found has the bytes that were
/// stored under it. Mechanism: one lock word in control memory, whose holder is a user (KvUser); a bit for each user and
/// block; `is_changing`, by which the next holder sees that the last one died in the middle of a change, and derives.
/// Memory is populated in pieces without the lock, by a thread as long as fewer blocks are free than half an extent has, and
/// by a call that finds no free block. Cost: a call takes the lock once; a waiter sleeps, and asks each 20 ms whether the
/// holder lives; the thread exists from the first time that blocks are few, and sleeps when the budget is used up. Stop: the
/// destructor ends the thread and returns the leases, and the end of the process does the same.
///
/// Thread safety: all members may be called concurrently, from processes of any PID namespace. What belongs to this
/// process alone lies in memory that a fork wipes: a forked child has no leases, and becomes a user of its own.
class KvPoolBlocks {
 public:
  /// Makes the control memory of a KV pool without users.
  static Fd make(const KvGeometry& geometry);
  /// Makes a file of zeros control memory without users. REQUIRES: the file has KvMemory::bytes_for(geometry).
  static void format(const Fd& file, const KvGeometry& geometry);
  /// Returns the geometry of control memory. Throws bad_handle.
  static KvGeometry geometry_of(const Fd& control);
  /// Returns numbers of each namespace without the lock. Throws bad_handle.
  static std::vector<KvPoolStats> stats_of(const Fd& control);

  /// Becomes a user with the first call. Throws invalid_argument if the blocks do not fit the extents or the namespace, and
  /// out_of_memory if there are too many namespaces.
  KvPoolBlocks(const Fd& control, const KvPoolOptions& options, KvPopulate populate = {},
               std::chrono::nanoseconds patience = std::chrono::milliseconds(50));
  ~KvPoolBlocks();

  std::vector<std::uint32_t> allocate(std::uint32_t count);
  void release(std::span<const std::uint32_t> numbers);
  bool put(std::string_view key, std::uint32_t number);
  std::vector<std::optional<std::uint32_t>> write(std::span<const std::string> keys, std::uint32_t group);
  void complete(std::span<const std::uint32_t> numbers, std::uint32_t part);
  void fail(std::span<const std::uint32_t> numbers);
  std::vector<std::uint64_t> tickets(std::span<const std::uint32_t> numbers);
  std::vector<std::uint32_t> join(std::span<const std::uint64_t> tickets);
  std::vector<std::optional<std::uint32_t>> find(std::span<const std::string> keys, bool all);
  std::vector<KvPresence> contains(std::span<const std::string> keys) const;
  std::uint32_t pin(std::span<const std::string> keys, std::uint32_t seconds);
  bool remove(std::string_view key);
  std::uint32_t clear();
  KvPoolEvents events(std::uint64_t since) const;
  KvPoolStats stats();
  /// Throws invalid_argument for a block that this process has not leased.
  void check_leased(std::span<const std::uint32_t> numbers);

  const KvGeometry& geometry() const noexcept { return memory_.geometry; }

 private:
  static constexpr int kMaxGrowth =
      20;  ///< times patience_ for which a piece of another user is waited for

  class Change;
  /// The state of this process alone, in memory that a fork fills with zeros, which is an unlocked mutex.
  struct Own {
    Mutex mutex;
    std::uint32_t user, row;  ///< 0: this process is not a user yet
    std::uint64_t stuck;  ///< the turn of the lock for which this process has waited in vain; 0 for none
    std::uint32_t asked;  ///< when we last asked for that user, in milliseconds
    std::uint32_t owed;   ///< how many blocks wait until a release() takes effect
    std::uint32_t slow_grower;  ///< the user whose extent this process no longer waits for; 0 for none
  };

  void check_sizes(const KvPoolOptions& options) const;
  void find_space(const KvPoolOptions& options);
  KvSpace& new_space(const KvPoolOptions& options) const;
  KvSpace& space() const noexcept { return index_.space(space_); }
  void become_user();
  void take_row();
  std::uint32_t users() const noexcept;
  void take_all(std::span<std::uint32_t> numbers);
  bool enter();
  bool waits_in_vain() noexcept;
  void return_owed() noexcept;
  void end_the_dead(bool is_urgent) noexcept;
  void check_mine(std::uint32_t number, const char* what) const;
  void lease(std::uint32_t block) noexcept;
  bool has_share(std::uint64_t blocks) noexcept;
  std::uint32_t missing(std::span<const KvKey> keys) const noexcept;
  bool waits_for_growth(std::uint32_t count, std::chrono::steady_clock::time_point since) noexcept;
  bool lacks_memory_ahead(bool goes_on) const noexcept;
  void grow_ahead();
  template <class Wanted, class Take>
  bool with_blocks(const Wanted& wanted, const Take& take);
  std::uint32_t claim_for(std::uint32_t count) noexcept;
  bool grow(std::uint32_t extent);
  std::optional<std::uint32_t> write_one(const KvKey& key, std::uint32_t group) noexcept;
  Own& own() const noexcept { return *own_->as<Own>(); }
  std::uint32_t* mine() const noexcept { return own_->as<std::uint32_t>(sizeof(Own)); }
  std::uint32_t* owed() const noexcept { return mine() + memory_.geometry.blocks(); }

  const std::chrono::nanoseconds patience_;
  const Fd control_;
  const Mapping bytes_;
  const KvMemory memory_;
  KvIndex index_;
  const KvPopulate populate_;
  const bool copies_from_card_;
  std::unique_ptr<Mapping> own_;
  std::unique_ptr<KvUser> user_;
  std::unique_ptr<Worker> growth_;  ///< of the user
  std::atomic<std::uint32_t> refused_at_{
      0};  ///< when the system last had no memory for growth_, in milliseconds
  std::uint32_t space_ = 0, serial_ = 0;  ///< the namespace
};

}  // namespace onecopy::store
