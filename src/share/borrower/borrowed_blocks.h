// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "onecopy/share/handle_fields.h"
#include "os/event_loop.h"
#include "os/fd.h"
#include "os/mutex.h"
#include "os/process_origin.h"
#include "os/process_watch.h"
#include "share/borrower/leases.h"
#include "share/borrower/mapped_segments.h"
#include "share/owner/shared_blocks.h"

namespace onecopy {

/// The process that owns borrowed memory: its identity, its block table, and whether it or its program has ended.
///
/// Thread safety: all members may be called concurrently, but for set_table().
class OwnerProcess {
 public:
  /// Constructs an owner. `name` is public_name() of `id`. If `watch` is for no process, the process has ended.
  OwnerProcess(const ProcessId& id, std::string name, int pid = 0, ProcessWatch watch = {});

  /// Sets the block table. REQUIRES: called once, before all other members.
  void set_table(Fd file);

  const ProcessId& id() const noexcept { return id_; }
  const std::string& name() const noexcept { return name_; }
  int pid() const noexcept { return pid_; }
  /// Runs `on_end` when the process ends, see ProcessWatch::start(). REQUIRES: forget() has not been called.
  void watch(EventLoop& loop, EventLoop::Task on_end);
  void stop_watching() noexcept;
  /// Returns the pid and the start time, which the first call reads. Throws if it cannot be read.
  ProcessOrigin origin() const;
  /// Duplicates the descriptor of the block table. Empty after close_table().
  Fd export_table() const;

  /// Returns whether the process has ended. Asks the kernel and not the watch thread.
  bool has_ended() const noexcept;
  /// Returns whether the owner no longer maps its block table, because its program has ended, perhaps by exec. The
  /// owner's device may still be at work.
  bool has_lost_mark() const noexcept;
  /// Returns whether the watch thread has seen the end of the owner, so that its memory is frozen.
  bool is_gone() const noexcept { return gone_; }
  void set_gone() noexcept {
    gone_ = true;
    report_releases();
  }
  /// Returns whether the end of a lease may be the event that a sweep waits for: the owner is gone, or this process is
  /// about to leave it.
  bool reports_releases() const noexcept { return reports_releases_; }
  void report_releases() noexcept { reports_releases_ = true; }

  /// Closes the descriptor of the block table.
  void close_table() noexcept;
  /// Closes the descriptor of the process.
  void forget() noexcept;

  // The fork handlers call the following members.
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }

 private:
  const ProcessId id_;
  const std::string name_;
  const int pid_;
  mutable std::atomic<std::uint64_t> start_time_{0};  ///< 0 until it is known
  std::atomic<bool> gone_{false};
  std::atomic<bool> reports_releases_{false};
  mutable Mutex mutex_;  ///< held while a descriptor is used or given back
  ProcessWatch watch_ GUARDED_BY(mutex_);
  Fd table_ GUARDED_BY(mutex_);
  std::uint64_t table_inode_ = 0;
};

/// The blocks that this process borrows from another: the leases, the mapped segments that contain the blocks, and the
/// owner. The segments of a dead owner are frozen, because a dead process reuses nothing.
///
/// Thread safety: all members may be called concurrently. Invariant: `whole` owns this object.
class BorrowedBlocks final : public SharedBlocks {
 public:
  /// Constructs an object without a table and a page. Throws out_of_mappings.
  explicit BorrowedBlocks(OwnerProcess& process) : process_(process) {}

  // The following two are set once, before another thread knows this object.
  std::weak_ptr<const void> whole;  ///< the object that this one is part of
  Wakeup on_release;  ///< called after the end of a lease, if OwnerProcess::reports_releases()

  /// Takes a lease on the block if its generation is still the handle's. `ask` answers for a block that its owner has
  /// freed, see onecopy::try_claim(). Returns an empty reference for a stale block.
  template <class Ask>
  BlockRef try_claim(std::uint32_t block, std::uint64_t generation, Ask&& ask) noexcept {
    if (!leases_.try_claim(block, generation, ask)) return {};
    return {this, block};
  }
  struct ClaimRequest {  ///< the fields of a handle
    std::uint32_t block;
    std::uint32_t segment;
    std::uint64_t segment_size;
    std::uint64_t storage_size;
    SegmentKind kind;
  };
  /// The place of a claimed block in this process.
  struct Location {
    std::byte* data = nullptr;
    const DeviceIdentity* identity = nullptr;
    explicit operator bool() const noexcept { return data != nullptr; }
  };
  /// Locates the block for the device `user` of this process, or else for the memory's own. Returns an empty location
  /// if the block's segment is not mapped. Throws bad_handle if the handle contradicts the owner's table, and
  /// unsupported if `user` cannot reach the memory.
  Location locate(const ClaimRequest& handle, Access access, std::optional<Device> user = {});
  /// Returns whether the owner has ended and no lease is left, after which no block is opened again.
  bool is_closed() const noexcept { return leases_.is_closed(); }
  Leases& leases() noexcept { return leases_; }
  MappedSegments& segments() noexcept { return segments_; }

  void add_reference(std::uint32_t block) noexcept override { leases_.add_reference(block); }
  void release(std::uint32_t block) noexcept override;
  void release_now(std::uint32_t block) noexcept override;
  std::uint32_t segment_of(std::uint32_t block) const noexcept override {
    return leases_.describe(block).segment;
  }
  std::shared_ptr<DeviceMemory> segment_memory(std::uint32_t segment, Access access) const override {
    return segments_.memory(segment, access);
  }
  void begin_pin(std::uint32_t segment) override;
  void end_pin(std::uint32_t segment) noexcept override { leases_.end_pin(segment); }
  bool holds(std::uint32_t block) const noexcept override { return leases_.has(block); }
  bool uses(std::uint32_t segment, std::uint64_t offset, std::uint64_t bytes,
            const std::set<std::uint32_t>& others) const noexcept override {
    return leases_.any_in(segment, offset, bytes, others);
  }
  std::shared_ptr<const void> keep_alive() const override { return whole.lock(); }
  const ProcessId& owner() const noexcept override { return process_.id(); }
  void begin_transit(std::uint32_t block, std::uint64_t channel) noexcept override {
    leases_.begin_transit(block, channel);
  }
  void end_transit(std::uint32_t block) noexcept override { leases_.end_transit(block); }
  ExportedBlock export_block(std::uint32_t block, Access access) override;
  std::span<std::byte> bytes_of(std::uint32_t block, Access access) override;
  ExportedMemory export_segment(std::uint32_t segment, Access access) const override {
    return segments_.export_memory(segment, access);
  }
  Fd export_table() const override;
  std::byte* allow(std::uint32_t block, Access access, int ordinal) override;
  ProcessOrigin origin() const override { return process_.origin(); }

 private:
  void check_not_ended_with_owner(SegmentKind kind, std::uint32_t segment) const;

  OwnerProcess& process_;
  Leases leases_;
  MappedSegments segments_;
};

}  // namespace onecopy
