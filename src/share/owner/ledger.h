// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "memory/pool.h"
#include "os/event_loop.h"
#include "os/fd.h"
#include "os/mapping.h"
#include "os/mutex.h"
#include "os/process_origin.h"
#include "os/program_mark.h"
#include "share/owner/block_table.h"
#include "share/owner/claim.h"
#include "share/owner/claim_memory.h"
#include "share/owner/shared_blocks.h"

namespace onecopy {

/// A record of which of an owner's segments are pinned, here or by borrowers. The ledger of the owner asks before pages
/// go back.
///
/// Thread safety: external, by the ledger's mutex. Borrowers write their pages concurrently.
class SegmentPins {
 public:
  using PageRef = BlockTable<RealPlatform>::PageRef;

  /// Constructs a record. `holes`: the owner's words, which borrowers read.
  explicit SegmentPins(PinWords holes) noexcept : holes_(holes) {}

  /// Adds the page of a borrower; detach() removes it once the borrower's process is gone. Throws bad_alloc, with
  /// nothing changed.
  void attach(PageRef page) { borrowers_.push_back(page); }
  void detach(PageRef page) noexcept { std::erase(borrowers_, page); }

  /// Counts a pin of a piece of the segment by this process; end_own() ends it. The first pin of a segment allocates
  /// memory.
  void note_own(std::uint32_t segment);
  void end_own(std::uint32_t segment) noexcept;

  /// Begins and ends a hole, which is pages that go back to the system, as PageGuard says.
  bool begin_hole(std::uint32_t segment) noexcept;
  void end_hole(std::uint32_t segment) noexcept;

 private:
  bool is_pinned(std::uint32_t segment) const noexcept;

  PinWords holes_;
  std::unique_ptr<std::atomic<std::uint32_t>[]> own_;
  std::vector<PageRef> borrowers_;
};

/// Waits until no hole is under way that began before a pin was noted. Throws timeout.
void wait_for_hole(const std::function<bool()>& is_under_way, const std::function<bool()>& is_owner_gone);

/// The owner's record of its blocks and their holders: in this process (a count in private memory) and in others (the
/// claim protocol). Contains the table that borrowers read.
///
/// After a fork, the child's copy of the ledger stands for what the child holds of its parent's blocks: one claim for
/// each block, in a claim page of the child's own (see become_borrower).
///
/// Thread safety: all members may be called concurrently, but for the fork ones. REQUIRES for the fork members: the
/// process has one thread, which holds lock().
class Ledger final : public SharedBlocks, public PageGuard {
 public:
  using PageRef = BlockTable<RealPlatform>::PageRef;
  class Borrowers;
  class Inheritance;

  /// Makes a ledger. `limbo` is called when a block enters limbo, after which the maker of the ledger must call drain()
  /// later.
  Ledger(const ProcessId& owner, const SegmentTable& segments, Wakeup limbo = {});

  /// Adds a block with one reference; its extent is given back to `from` in the end. Throws out_of_memory, with the
  /// extent still the caller's, if kMaxBlocks are in use.
  BlockRef add(const Extent& extent, ExtentOwner& from);
  /// Keeps `kept` as long as a process holds `block`.
  void keep_with(std::uint32_t block, std::vector<BlockRef> kept);
  /// Returns a reference for a handle that came back to its owner; empty if the handle is stale.
  BlockRef try_open(std::uint32_t block, std::uint64_t generation) noexcept;
  /// Returns whether the block was freed here and is still held by a borrower, or was taken back since. Answers a
  /// borrower that has raised its slot.
  bool is_kept(std::uint32_t block, std::uint64_t generation) const noexcept;
  /// Looks at the borrowers' marks. Returns true while a block is in limbo.
  bool drain() noexcept;
  std::size_t limbo() const noexcept;
  std::size_t live() const noexcept;

  /// Returns an interface to the claim pages of borrowers.
  Borrowers borrowers() noexcept;
  /// Returns an interface for the time around a fork.
  Inheritance inheritance() noexcept;
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }

  const ProcessId& owner() const noexcept override { return owner_; }
  ExportedBlock export_block(std::uint32_t block, Access access) override;
  /// Exports a block for callers that already know its segment.
  MappedBlock export_spot(std::uint32_t block) noexcept;
  ExportedMemory export_segment(std::uint32_t segment, Access access) const override;
  std::vector<Fd> export_rest(std::uint32_t segment, std::size_t first) const {
    return segments_.export_rest(segment, first);
  }
  Fd export_table() const override;
  std::uint64_t table_inode() const noexcept { return table_inode_; }
  /// Returns whether the program that owns the blocks has ended, even if its process now runs another program. Returns
  /// false if this is unknown.
  bool has_program_ended() const noexcept;
  /// Returns the owner's pid and start time. The first call reads the start time, which takes long. Throws if it cannot
  /// be read.
  ProcessOrigin origin() const override;

 private:
  /// The owner's private record of a block.
  struct Local {
    std::atomic<std::uint32_t> refs;
    std::uint16_t source;
    bool keeps_others;
    std::byte* data;
  };
  static_assert(sizeof(Local) == 16);

  struct FreedBlock {
    Extent extent;
    ExtentOwner* from = nullptr;
    std::vector<BlockRef> kept;
  };

  // The following functions implement SharedBlocks. Pins belong to this process, also in a forked child's copy.
  void add_reference(std::uint32_t block) noexcept override;
  void release(std::uint32_t block) noexcept override;
  void release_all(std::span<const std::uint32_t> blocks) noexcept override;
  void release_now(std::uint32_t block) noexcept override;
  std::span<std::byte> bytes_of(std::uint32_t block, Access access) override;
  std::byte* allow(std::uint32_t block, Access access, int ordinal) override;
  // Count the block for an item on its way, unless this process owns the block: the counts tell an owner what the items
  // of a dead borrower still need, and no process reuses the memory of a dead owner.
  void begin_transit(std::uint32_t block, std::uint64_t channel) noexcept override {
    if (inherited_) transits_.begin(block, channel);
  }
  void end_transit(std::uint32_t block) noexcept override {
    if (inherited_) transits_.end(block);
  }
  std::uint32_t segment_of(std::uint32_t block) const noexcept override {
    return table_.record(block).segment;
  }
  std::shared_ptr<DeviceMemory> segment_memory(std::uint32_t segment, Access) const override {
    return segments_.memory(segment);
  }
  void begin_pin(std::uint32_t segment) override;
  void end_pin(std::uint32_t segment) noexcept override;
  bool holds(std::uint32_t block) const noexcept override { return local_[block].refs.load() != 0; }
  bool uses(std::uint32_t segment, std::uint64_t offset, std::uint64_t bytes,
            const std::set<std::uint32_t>& others) const noexcept override;
  // PageGuard.
  bool begin_hole(std::uint32_t segment) noexcept override;
  void end_hole(std::uint32_t segment) noexcept override;

  BlockRef try_revive(std::uint32_t block, std::uint64_t generation) noexcept;
  bool drop_reference(std::uint32_t block) noexcept;
  bool drop_unless_last(std::uint32_t block) noexcept;
  bool keeps_late(std::uint32_t block) noexcept;
  void last_references(std::span<const std::uint32_t> blocks) noexcept;
  void leave_inherited(std::uint32_t block) noexcept;
  FreedBlock take_out(std::uint32_t block) noexcept REQUIRES(mutex_);
  void make_room() REQUIRES(mutex_);
  std::uint16_t index_of(ExtentOwner& from) REQUIRES(mutex_);
  template <class Change>
  void reclaim(Change&& change) noexcept;
  void dispose() noexcept RELEASE(mutex_);
  bool dispose_some() noexcept RELEASE(mutex_);

  ProcessId owner_;
  const int pid_;
  mutable std::atomic<std::uint64_t> start_time_{0};  ///< 0 until it is known
  const SegmentTable& segments_;
  const Wakeup limbo_;
  mutable Fd file_ GUARDED_BY(mutex_);  ///< the descriptor of the table
  const std::uint64_t table_inode_;
  /// Shows, by the table's mapping, that the program runs.
  const ProgramMark mark_;
  /// Says that `file_` is read-only.
  mutable bool file_is_read_only_ GUARDED_BY(mutex_) = false;
  Mapping records_;
  Mapping local_memory_;
  Local* local_;
  mutable Mutex mutex_;
  BlockTable<RealPlatform> table_;
  SegmentPins pins_ GUARDED_BY(mutex_);
  std::vector<std::uint32_t> reusable_
      GUARDED_BY(mutex_);  ///< and not yet taken out; has room for all blocks
  std::vector<ExtentOwner*> sources_ GUARDED_BY(mutex_);
  std::unordered_map<std::uint32_t, std::vector<BlockRef>> kept_ GUARDED_BY(mutex_);
  Mapping everything_;  ///< see Inheritance::hold_everything()
  Claims inherited_;
  TransitCounts transits_;  ///< the items in queues of a forked child
};

/// An interface of a ledger for the broker: the claim pages of borrowers.
///
/// Thread safety: all members may be called concurrently, except attach_locked(). REQUIRES: the ledger outlives it.
class Ledger::Borrowers {
 public:
  explicit Borrowers(Ledger& ledger) noexcept : ledger_(ledger) {}

  /// Attaches the page of a new borrower. detach() removes the page once the borrower's process is gone.
  PageRef attach(const Claims& page);
  /// Attaches the page of a child that is about to be forked, with `all` raised. REQUIRES: the ledger is locked.
  PageRef attach_locked(const Claims& page) NO_THREAD_SAFETY_ANALYSIS;
  void attach_child(PageRef parent) noexcept;
  void detach(PageRef page) noexcept;
  /// Returns whether the borrower has announced children whose pages have not arrived.
  bool awaits_child(PageRef page) const noexcept;
  /// Makes the page of a borrower that is gone hold only the blocks in `transits`, since items that it put may still be
  /// in queues. Returns how many blocks.
  std::size_t leave_in_transit(PageRef page, const TransitCounts& transits) noexcept;
  std::uint64_t claims_of(PageRef page) const noexcept;

 private:
  Ledger& ledger_;
};

/// An interface of a ledger for fork.cpp, by which a child inherits the blocks.
///
/// Thread safety: none. REQUIRES: the ledger is locked, by the only thread there is; it outlives this object.
class Ledger::Inheritance {
 public:
  explicit Inheritance(Ledger& ledger) noexcept : ledger_(ledger) {}

  std::size_t live() const noexcept { return ledger_.table_.live(); }
  /// Exports all blocks before a fork, because the child may hold any live block, which later releases must take into
  /// account.
  void export_all() noexcept;
  /// Prevents the reuse of all blocks that were ever exported, before a fork for which no page can be made.
  void hold_everything();
  bool holds_everything() const noexcept { return static_cast<bool>(ledger_.everything_); }
  /// Turns the references of a forked child into claims in `page`, and lowers `all`.
  void become_borrower(Claims page, TransitCounts transits) noexcept;
  /// Drops what blocks in limbo keep, in a forked child: the parent will release them, and the child never would.
  /// REQUIRES: the child has claims on all that it inherited; the ledger is not locked.
  void leave_limbo_to_parent() noexcept;
  /// Returns the page of a forked child, which is empty in the owner.
  Claims page() const noexcept { return ledger_.inherited_; }

 private:
  std::vector<BlockRef> take_kept_of_freed() noexcept;

  Ledger& ledger_;
};

/// Runs `change` under the lock, and then disposes of the blocks that became reusable without the lock.
template <class Change>
void Ledger::reclaim(Change&& change) noexcept {
  mutex_.lock();
  change([&](std::uint32_t block) {
    mutex_.assert_held();
    reusable_.push_back(block);
  });
  dispose();
}

inline Ledger::Borrowers Ledger::borrowers() noexcept { return Borrowers(*this); }
inline Ledger::Inheritance Ledger::inheritance() noexcept { return Inheritance(*this); }

}  // namespace onecopy
