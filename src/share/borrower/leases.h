// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
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
  HazardGuard(const HazardGuard&) = delete;
  HazardGuard& operator=(const HazardGuard&) = delete;

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

/// The leases of this process on another's blocks: the owner's block table, the claim page that the owner made for us,
/// and a count of leases for each block. The counts are in private memory as well, where a forked child finds them.
///
/// Closed Leases hold nothing and never will. Their memory stays while a late claimer may touch it (HazardGuard).
///
/// Thread safety: all members may be called concurrently, except members that set up or end the leases or serve a fork.
class Leases {
 public:
  Leases();

  // Set the block table and the claim page; both throw protocol if the other side made them wrong. REQUIRES: both were
  // called before any other member.
  void set_table(const Fd& file);
  void set_page(Mapping page);

  const Record& record(std::uint32_t block) const noexcept { return records_[block]; }
  /// Returns a file with a copy of the block table. Throws owner_died after the leases were closed, out_of_descriptors.
  /// REQUIRES: the owner has ended, so that the table does not change.
  Fd copy_table() const;
  TransitCounts& transits() noexcept { return transits_; }

  /// Takes one more lease if the block's generation is still the handle's; see onecopy::try_claim() for `ask`.
  template <class Ask>
  bool try_claim(std::uint32_t block, std::uint64_t generation, Ask&& ask) noexcept {
    if (block >= kMaxBlocks) return false;
    const HazardGuard here(this);
    if (closed_) return false;
    std::uint32_t highest = highest_block_.load(std::memory_order_relaxed);
    while (highest < block && !highest_block_.compare_exchange_weak(highest, block)) {
    }
    const Record& claimed = record(block);
    if (!onecopy::try_claim(page_, claimed, block, generation, ask)) return false;
    if (closed_) {  // read after the slot was raised; try_close() writes and reads in the opposite order
      release_claim(page_, claimed, block);
      return false;
    }
    counts_[block].fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  void retain(std::uint32_t block) noexcept {
    page_.slot(block).fetch_add(1);
    counts_[block].fetch_add(1, std::memory_order_relaxed);
  }
  /// Ends a lease. If it is the last one, the object may be closed by another thread, but not before `afterwards` has
  /// returned.
  template <class Afterwards>
  void release(std::uint32_t block, Afterwards&& afterwards) noexcept {
    const HazardGuard here(this);  // the record is read after the lease has ended
    counts_[block].fetch_sub(1, std::memory_order_relaxed);
    release_claim(page_, record(block), block);
    afterwards();
  }
  void release(std::uint32_t block) noexcept {
    release(block, []() noexcept {});
  }
  // Marks the segment as pinned, see PinWords in claim.h. Has no effect after the leases were closed.
  void note_pin(std::uint32_t segment) noexcept {
    const HazardGuard here(this);
    if (!closed_) onecopy::note_pin<RealPlatform>(pins_in(page_)[segment]);
  }
  void end_pin(std::uint32_t segment) noexcept {
    const HazardGuard here(this);
    if (!closed_) onecopy::end_pin<RealPlatform>(pins_in(page_)[segment]);
  }
  /// Returns the owner's word for the segment. REQUIRES: the caller holds a lease.
  const PinWords::Word& holes(std::uint32_t segment) const noexcept {
    return PinWords(table_.as<PinWords::Word>(kHolesAt))[segment];
  }
  /// Returns whether the owner sees the claims and pins of this page.
  bool is_seen() const noexcept { return onecopy::is_seen(page_); }
  bool has(std::uint32_t block) const noexcept {
    const HazardGuard here(this);
    return !closed_ && counts_[block].load(std::memory_order_relaxed) != 0;
  }
  /// Returns whether there is a lease of a block, other than `others`, in the given bytes of the segment.
  bool any_in(std::uint32_t segment, std::uint64_t offset, std::uint64_t bytes,
              const std::set<std::uint32_t>& others) const noexcept;
  std::uint64_t count() const noexcept;
  std::vector<LeaseInfo> list() const;

  /// Closes the leases for ever, unless one is left. REQUIRES: called by one thread at a time.
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
  /// Takes over the leases in a forked child, in a page of its own; without one, in memory that no owner sees.
  void go_on_in_child(Mapping page) noexcept;

 private:
  bool any() const noexcept;

  Mapping table_;
  const Record* records_ = nullptr;
  Mapping page_memory_;
  Claims page_;
  TransitCounts transits_;
  Mapping count_memory_;
  std::atomic<std::uint32_t>* counts_ = nullptr;  ///< the number of leases by block
  std::atomic<std::uint32_t> highest_block_{0};
  std::atomic<bool> closed_{false};
};

}  // namespace onecopy
