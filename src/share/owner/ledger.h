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

  /// `holes`: the owner's words, which borrowers read.
  explicit SegmentPins(PinWords holes) noexcept : holes_(holes) {}

  /// A borrower's page comes, and goes once its process is gone. attach() may throw bad_alloc; nothing is changed then.
  void attach(PageRef page);
  void detach(PageRef page) noexcept;

  /// Begins or ends a pin of a piece of the segment by this process. The first one needs memory.
  void note_own(std::uint32_t segment);
  void end_own(std::uint32_t segment) noexcept;

  /// Begins and ends a hole as PageGuard says.
  bool begin_hole(std::uint32_t segment) noexcept;
  void end_hole(std::uint32_t segment) noexcept;

 private:
  bool is_pinned(std::uint32_t segment) const noexcept;

  PinWords holes_;
  std::unique_ptr<std::atomic<std::uint32_t>[]> own_;
  std::vector<PageRef> borrowers_;
};

/// Waits until no hole is under way that began before a pin was noted. Throws timeout.
void wait_for_hole(const PinWords::Word& holes, const std::function<bool()>& is_owner_gone);

/// The owner's book of its blocks and their holders: in this process (a count in private memory) and elsewhere (the
/// claim protocol). The ledger has the table that borrowers read.
///
/// After a fork the child's copy speaks for the child. The blocks of the copy are the parent's. The child's inheritance
/// is one claim a block in a claim page of its own (see become_borrower).
///
/// Thread safety: all members may be called concurrently, but for the fork ones. REQUIRES for the fork members: lock()
/// is held by the only thread there is.
class Ledger final : public SharedBlocks, public PageGuard {
 public:
  using PageRef = BlockTable<RealPlatform>::PageRef;
  class Borrowers;
  class Inheritance;

  /// `limbo` is called when a block enters limbo. The maker of the ledger must look again later, see drain().
  Ledger(const ProcessId& owner, const SegmentTable& segments, Wakeup limbo = {});

  /// Enters an extent with one reference; the extent goes back to `from` in the end. Throws out_of_memory if
  /// kMaxBlocks are in use; the extent is still the caller's then.
  BlockRef add(const Extent& extent, ExtentOwner& from);
  /// `kept` lives as long as any process holds `block`.
  void keep_with(std::uint32_t block, std::vector<BlockRef> kept);
  /// Returns another reference for a handle that came back to its owner; empty if it is stale.
  BlockRef try_open(std::uint32_t block, std::uint64_t generation) noexcept;
  /// Returns whether the block is freed here and still held by a borrower, or was taken back since. Answers a borrower
  /// that has raised its slot.
  bool is_kept(std::uint32_t block, std::uint64_t generation) const noexcept;
  /// Looks at the borrowers' marks. Returns true while a block is in limbo.
  bool drain() noexcept;
  std::size_t limbo() const noexcept;
  std::size_t live() const noexcept;

  /// The claim pages of borrowers.
  Borrowers borrowers() noexcept;
  /// The ledger around a fork, and in a forked child.
  Inheritance inheritance() noexcept;
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }

  const ProcessId& owner() const noexcept override { return owner_; }
  ExportedBlock export_block(std::uint32_t block, Access access) override;
  /// Exports the block for callers that know the segment already.
  MappedBlock export_spot(std::uint32_t block) noexcept;
  ExportedMemory export_segment(std::uint32_t segment, Access access) const override;
  std::vector<Fd> export_rest(std::uint32_t segment, std::size_t first) const {
    return segments_.export_rest(segment, first);
  }
  Fd export_table() const override;
  std::uint64_t table_inode() const noexcept { return table_inode_; }
  /// Returns whether the program that owns the blocks has ended. Another program may run in its process since. Returns
  /// false if that cannot be told.
  bool has_program_ended() const noexcept;
  /// The start time is read when it is first asked for, since that takes long. Throws if it cannot be read.
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

  // The rest of SharedBlocks, for callers that know no ledger. Pins are of this process, also in a forked child's copy.
  void retain(std::uint32_t block) noexcept override;
  void release(std::uint32_t block) noexcept override;
  void release_all(std::span<const std::uint32_t> blocks) noexcept override;
  void release_now(std::uint32_t block) noexcept override;
  std::span<std::byte> bytes_of(std::uint32_t block, Access access) override;
  std::byte* allow(std::uint32_t block, Access access, int ordinal) override;
  void begin_transit(std::uint32_t block, std::uint64_t channel) noexcept override;
  void end_transit(std::uint32_t block) noexcept override;
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
  mutable std::atomic<std::uint64_t> start_time_{0};  ///< 0: not known yet
  const SegmentTable& segments_;
  const Wakeup limbo_;
  mutable Fd file_ GUARDED_BY(mutex_);  ///< of the table
  const std::uint64_t table_inode_;
  const ProgramMark mark_;                                     ///< on the table
  mutable bool file_is_read_only_ GUARDED_BY(mutex_) = false;  ///< by its descriptor
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
  TransitCounts transits_;  ///< of a forked child
};

/// The claim pages of the borrowers of a ledger: the side of it that the broker works with.
///
/// Thread safety: all members may be called concurrently, except attach_locked(). REQUIRES: the ledger outlives it.
class Ledger::Borrowers {
 public:
  explicit Borrowers(Ledger& ledger) noexcept : ledger_(ledger) {}

  /// Attaches the page of a borrower that comes. The page stays until detach(), once the borrower's process is gone.
  PageRef attach(const Claims& page);
  /// Attaches the page of a coming child before a fork, with `all` raised. REQUIRES: the ledger is locked.
  PageRef attach_locked(const Claims& page) NO_THREAD_SAFETY_ANALYSIS;
  void attach_child(PageRef parent) noexcept;
  void detach(PageRef page) noexcept;
  /// Returns whether the borrower has announced children whose pages have not come.
  bool awaits_child(PageRef page) const noexcept;
  /// Makes the page hold the blocks in `transits` and no others: the borrower is gone, but items that it put may still
  /// be in queues. Returns how many blocks.
  std::size_t leave_in_transit(PageRef page, const TransitCounts& transits) noexcept;
  std::uint64_t claims_of(PageRef page) const noexcept;

 private:
  Ledger& ledger_;
};

/// A ledger around a fork: how a child inherits its blocks, see fork.cpp.
///
/// Thread safety: none. REQUIRES: the ledger is locked, by the only thread there is; it outlives this object.
class Ledger::Inheritance {
 public:
  explicit Inheritance(Ledger& ledger) noexcept : ledger_(ledger) {}

  std::size_t live() const noexcept { return ledger_.table_.live(); }
  /// Exports all blocks before a fork: the child may hold any live block, so freeing it must look.
  void export_all() noexcept;
  /// Prevents the reuse of every block that was ever exported, before a fork for which there can be no page.
  void hold_everything();
  bool holds_everything() const noexcept { return static_cast<bool>(ledger_.everything_); }
  /// Turns references into claims in `page` in a forked child, and lowers `all`.
  void become_borrower(Claims page, TransitCounts transits) noexcept;
  /// Drops the references of blocks in limbo in a forked child, which the parent will release and the child never would.
  /// REQUIRES: all that the child inherited is claimed; the ledger is not locked.
  void leave_limbo_to_parent() noexcept;
  /// Returns the page of a forked child, which is empty in the owner.
  Claims page() const noexcept { return ledger_.inherited_; }

 private:
  std::vector<BlockRef> take_kept_of_freed() noexcept;

  Ledger& ledger_;
};

/// Runs `change` under the lock, and disposes of the blocks that became reusable without it.
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
