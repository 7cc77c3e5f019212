// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "os/fd.h"
#include "os/mapping.h"
#include "share/owner/claim_memory.h"

namespace onecopy {

/// A guard: while it lives, its thread may touch the memory of `place` although it holds no block there. The thread
/// that closes a place learns from readers_of() when no guard is left, and the memory can be given back.
///
/// Order: a reader raises its guard, checks whether the place is closed, and if so touches nothing. The closer closes
/// the place, then looks for readers. The later of the two sees the earlier one: a guard's stores are plain, and
/// readers_of() makes the stores of all threads visible (membarrier(2)).
///
/// Thread safety: a guard belongs to its thread, and one thread has one at a time. A guard inside of another
/// replaces it for good.
class HazardGuard {
 public:
  explicit HazardGuard(const void* place) noexcept : slot_(mine_ ? *mine_ : begin()) {
    slot_.place.store(place, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  ~HazardGuard() { slot_.place.store(nullptr, std::memory_order_release); }
  HazardGuard& operator=(HazardGuard&&) = delete;

  enum class Readers : std::uint8_t {
    none,
    some,
    unknown,  ///< the kernel does not tell
  };
  /// Registers this process with the kernel for readers_of(), once. In a process with other threads this takes about
  /// ten milliseconds, and many seconds on an overloaded machine, so call it where no other thread waits.
  static void prepare() noexcept;
  /// Registers this process if it has only one thread, because then the kernel does not wait for others.
  static void prepare_if_single_threaded() noexcept;
  static Readers readers_of(const void* place) noexcept;
  /// Forgets the parent's other threads. REQUIRES: this is a forked child.
  static void forget_others() noexcept;

 private:
  struct Slot {  ///< used by one thread at a time; never destroyed
    std::atomic<const void*> place{nullptr};
    std::atomic<bool> is_taken{true};
    Slot* next = nullptr;
  };
  struct SlotReturn;

  static Slot& begin() noexcept;
  static Slot* take() noexcept;

  inline static std::atomic<Slot*> all_{nullptr};
  inline static thread_local Slot* mine_ = nullptr;

  Slot& slot_;
};

/// A block on which this process has leases, as its owner's table describes it.
struct LeaseInfo {
  std::uint32_t block;
  std::uint32_t count;
  BlockState state;
  std::uint32_t segment;
  std::uint64_t size;
};

/// The record of a block, as a thread has read it.
struct BlockDescription {
  std::uint64_t word;
  std::uint64_t offset;
  std::uint64_t size;
  std::uint32_t segment;
};

/// The leases of this process on another's blocks: the owner's block table, the claim page that the owner made for us,
/// and a count of leases for each block. The counts are in private memory as well, where a forked child finds them.
///
/// Once the owner has ended, the leases are frozen: the counts alone say what is held, and a copy of the records replaces
/// the table. Closed Leases hold nothing and never will. Memory that is given back stays while a thread may touch it
/// (HazardGuard).
///
/// Thread safety: all members may be called concurrently, except members that set up or end the leases or serve a fork.
class Leases {
 public:
  Leases();

  // Set the block table and the claim page; both throw protocol if the other side made them wrong. REQUIRES: both were
  // called before any other member.
  void set_table(const Fd& file);
  void set_page(Mapping page);
  /// Takes a copy of the table of an owner that has ended, and needs no page. Throws protocol.
  void set_frozen_table(const Fd& file);

  /// Returns the record of a block. REQUIRES: the caller holds a lease of the block.
  BlockDescription describe(std::uint32_t block) const noexcept {
    const HazardGuard here(this);
    const Record& r = record(block);
    return {r.word.load(), r.offset, r.size, r.segment};
  }
  /// Returns a file with a copy of the block table. Throws owner_died after the leases were closed, out_of_descriptors.
  /// REQUIRES: the owner has ended, so that the table does not change.
  Fd copy_table() const;
  // Count items in queues, see TransitCounts. Have no effect after the owner has ended.
  void begin_transit(std::uint32_t block, std::uint64_t channel) noexcept {
    const HazardGuard here(this);
    if (!frozen_) transits_.begin(block, channel);
  }
  void end_transit(std::uint32_t block) noexcept {
    const HazardGuard here(this);
    if (!frozen_) transits_.end(block);
  }

  /// Takes one more lease if the block's generation is still the handle's; see onecopy::try_claim() for `ask`.
  template <class Ask>
  bool try_claim(std::uint32_t block, std::uint64_t generation, Ask&& ask) noexcept {
    if (block >= kMaxBlocks) return false;
    const HazardGuard here(this);
    if (closed_) return false;
    const Record& claimed = record(block);  // loaded before `frozen_`, see try_copy_records()
    if (frozen_) return try_claim_frozen(block, generation);
    std::uint32_t highest = highest_block_.load(std::memory_order_relaxed);
    while (highest < block && !highest_block_.compare_exchange_weak(highest, block)) {
    }
    if (!onecopy::try_claim(page_, claimed, block, generation, ask)) return false;
    if (closed_) {  // read after the slot was raised; try_close() writes and reads in the opposite order
      release_claim(page_, claimed, block);
      return false;
    }
    counts_[block].fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  void add_reference(std::uint32_t block) noexcept {
    const HazardGuard here(this);
    if (!frozen_) page_.slot(block).fetch_add(1);
    counts_[block].fetch_add(1, std::memory_order_relaxed);
  }
  /// Ends a lease. If it is the last one, the object may be closed by another thread, but not before `afterwards` has
  /// returned.
  template <class Afterwards>
  void release(std::uint32_t block, Afterwards&& afterwards) noexcept {
    const HazardGuard here(this);                            // the record is read after the lease has ended
    counts_[block].fetch_sub(1, std::memory_order_release);  // once frozen, try_close() asks it alone
    if (!frozen_) release_claim(page_, record(block), block);
    afterwards();
  }
  void release(std::uint32_t block) noexcept {
    release(block, []() noexcept {});
  }
  // Marks the segment as pinned, see PinWords in claim.h. Has no effect after the leases were closed or frozen.
  void note_pin(std::uint32_t segment) noexcept {
    const HazardGuard here(this);
    if (!closed_ && !frozen_) onecopy::note_pin<RealPlatform>(pins_in(page_)[segment]);
  }
  void end_pin(std::uint32_t segment) noexcept {
    const HazardGuard here(this);
    if (!closed_ && !frozen_) onecopy::end_pin<RealPlatform>(pins_in(page_)[segment]);
  }
  /// Returns whether the owner gives pages of the segment back now. REQUIRES: the caller holds a lease.
  bool is_hole_under_way(std::uint32_t segment) const noexcept {
    const HazardGuard here(this);
    return !frozen_ &&
           onecopy::is_hole_under_way<RealPlatform>(PinWords(table_.as<PinWords::Word>(kHolesAt))[segment]);
  }
  /// Returns whether the owner sees the claims and pins of this process, or has ended and need not.
  bool is_seen() const noexcept {
    const HazardGuard here(this);
    return frozen_ || onecopy::is_seen(page_);
  }
  bool has(std::uint32_t block) const noexcept {
    const HazardGuard here(this);
    if (closed_ || block >= (frozen_ ? used_.load() : kMaxBlocks)) return false;
    return counts_[block].load(std::memory_order_relaxed) != 0;
  }
  /// Returns whether there is a lease of a block, other than `others`, in the given bytes of the segment.
  bool any_in(std::uint32_t segment, std::uint64_t offset, std::uint64_t bytes,
              const std::set<std::uint32_t>& others) const noexcept;
  std::uint64_t count() const noexcept;
  std::vector<LeaseInfo> list() const;

  /// Gives the table, the page and the counts of unused blocks back. Returns false while a thread may touch them, after
  /// which the caller must try again later. Has no effect if the kernel cannot tell, or if memory is short. REQUIRES: the
  /// owner has ended; called by one thread at a time.
  bool try_freeze() noexcept;
  /// Returns whether a thread that may touch memory keeps the leases from being frozen, or closed and forgotten. REQUIRES:
  /// the owner has ended; called by one thread at a time.
  bool are_waiting() const noexcept { return is_freezing() || count() == 0; }
  /// Closes the leases for ever, unless one is left. REQUIRES: called by one thread at a time; try_freeze() has not
  /// returned false.
  bool try_close() noexcept;
  bool is_closed() const noexcept { return closed_; }
  /// Gives the memory back. Returns false while a claimer may touch it, after which the caller must try again later.
  /// REQUIRES: closed; called by one thread at a time.
  bool try_forget() noexcept;
  /// Returns whether no thread is claiming or releasing here; false if the kernel cannot tell.
  bool has_no_readers() const noexcept {
    return HazardGuard::readers_of(this) == HazardGuard::Readers::none;
  }

  // The fork handlers call the following members.
  Claims& page() noexcept { return page_; }
  /// Takes over the leases in a forked child, in a page of its own; without one, in memory that no owner sees. Frozen
  /// leases need none.
  void go_on_in_child(Mapping page) noexcept;

 private:
  const Record& record(std::uint32_t block) const noexcept { return records_.load()[block]; }
  bool is_freezing() const noexcept { return frozen_ && table_; }
  bool try_claim_frozen(std::uint32_t block, std::uint64_t generation) noexcept;
  std::uint32_t used_of(const Record* records) const noexcept;
  bool try_copy_records() noexcept;
  std::uint32_t end() const noexcept;
  bool any() const noexcept;

  Mapping table_;
  std::atomic<const Record*> records_{nullptr};  ///< in table_ or copied_
  std::unique_ptr<Record[]> copied_;
  Mapping page_memory_;
  Claims page_;
  TransitCounts transits_;
  Mapping count_memory_;
  std::atomic<std::uint32_t>* counts_ = nullptr;  ///< the number of leases by block
  std::atomic<std::uint32_t> highest_block_{0};
  std::atomic<std::uint32_t> used_{kMaxBlocks};  ///< the number of records; all until the leases are frozen
  std::atomic<bool> frozen_{false};              ///< never false again
  std::atomic<bool> closed_{false};
};

}  // namespace onecopy
