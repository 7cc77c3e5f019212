// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/backend.h"

namespace onecopy {

/// A piece of a segment, handed out by a Pool.
struct Extent {
  std::uint32_t segment = 0;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;  ///< bytes usable; at least what was asked for
  std::byte* data = nullptr;
};

/// Where an extent goes back to.
class ExtentOwner {
 public:
  virtual void free(const Extent& extent) noexcept = 0;

 protected:
  ~ExtentOwner() = default;
};

/// What a segment is, for handles and listings.
struct SegmentInfo {
  std::uint32_t number = 0;
  SegmentKind kind = SegmentKind::memfd;
  Device device;
  std::uint64_t size = 0;       ///< address range in bytes
  std::uint64_t committed = 0;  ///< bytes of physical memory reserved
  const DeviceIdentity* identity = nullptr;
};

/// Says whether pages of a segment may go back to the system: not while a driver has pinned any of them, in whatever
/// process, since a card would go on using the old pages. Thread safety: as its user's.
class PageGuard {
 public:
  /// From a yes on until end_hole() nobody pins pages of the segment.
  virtual bool begin_hole(std::uint32_t segment) noexcept = 0;
  virtual void end_hole(std::uint32_t segment) noexcept = 0;

 protected:
  ~PageGuard() = default;
};

/// All segments of this process, over all pools, by number. Numbers start at 1 and are never reused.
/// Thread safety: all members may be called concurrently, but for those about fork. No lock is held while a vendor is
/// called.
class SegmentTable {
 public:
  SegmentTable() = default;
  ~SegmentTable();
  SegmentTable(const SegmentTable&) = delete;
  SegmentTable& operator=(const SegmentTable&) = delete;

  /// Called (without locks held) after a segment has left the table. Set it before the first pool. When it throws
  /// bad_alloc it is called again, by tell_retired().
  std::function<void(std::uint32_t number)> on_retire;
  /// Asked before pages of a segment go back to the system; none: they may. Set it before the first pool.
  PageGuard* guard = nullptr;

  std::uint32_t next_number() noexcept;
  void add(std::uint32_t number, Device device, std::unique_ptr<DeviceMemory> memory);
  /// Unmaps the segment. REQUIRES: no block of it is in use anywhere.
  void remove(std::uint32_t number) noexcept;
  /// Calls on_retire where it has failed. True when it has failed again.
  bool tell_retired() noexcept;
  /// Gives pages back to the system, see DeviceMemory::decommit(). False, and nothing is done, when its guard forbids
  /// it. REQUIRES: nobody uses them.
  bool give_back(std::uint32_t number, DeviceMemory& memory, std::uint64_t offset,
                 std::uint64_t bytes) noexcept;
  /// The same of pages that were not counted as reserved.
  bool punch(std::uint32_t number, DeviceMemory& memory, std::uint64_t offset,
             std::uint64_t bytes) noexcept;
  /// The segment as it is mapped here; null when there is none such. Who keeps it keeps it mapped.
  std::shared_ptr<DeviceMemory> memory(std::uint32_t number) const noexcept;
  /// Notes that so many bytes of the segment were reserved, or given back when negative.
  void add_committed(std::uint32_t number, std::int64_t bytes) noexcept;
  /// Throws stale_handle when there is no such segment (any more).
  ExportedMemory export_memory(std::uint32_t number, Access access) const;
  /// See DeviceMemory::export_rest(). Throws as above.
  std::vector<Fd> export_rest(std::uint32_t number, std::size_t first) const;
  /// See DeviceMemory::allow().
  std::byte* allow(std::uint32_t number, int ordinal) const;
  SegmentInfo info(std::uint32_t number) const;
  std::vector<SegmentInfo> list() const;

  /// Before and after fork(2), so that a child never inherits a table in the middle of a change.
  void prepare_fork() { mutex_.lock(); }
  void finish_fork() { mutex_.unlock(); }
  /// In a forked child: the segments stay mapped and exportable, and the destructor leaves them so.
  void abandon() noexcept { abandoned_ = true; }

 private:
  struct Entry {
    const DeviceIdentity* identity;
    /// Shared by the table, the callers that are with the vendor now, and those that have it pinned.
    std::shared_ptr<DeviceMemory> memory;
    std::uint64_t committed = 0;
  };
  Entry find(std::uint32_t number) const;
  const Entry& entry(std::uint32_t number) const;

  mutable std::mutex mutex_;
  std::map<std::uint32_t, Entry> entries_;
  std::vector<std::uint32_t> retired_;  ///< and not told; has room for all entries
  std::uint32_t last_ = 0;
  bool abandoned_ = false;
};

struct PoolStats {
  std::uint64_t live_blocks = 0;
  std::uint64_t live_bytes = 0;  ///< as rounded up by the pool
  std::uint64_t committed_bytes = 0;
  std::uint64_t peak_committed_bytes = 0;
  std::uint64_t segments = 0;
  std::uint64_t allocations = 0;  ///< since the beginning
  std::uint64_t warm_bytes = 0;   ///< free, but still holding physical memory; part of committed
};

/// Owns the segments of one device and cuts extents out of them.
///
/// Extents of kOwnSegment bytes and more are segments of their own, so that a small one never pins a
/// large one. What is freed stays warm for kDecay, because a page given back costs many times a warm
/// one to fill again; trim() gives it back after that. Whenever more memory is reserved, what lies
/// warm is at most half of what is in use, plus 64 MiB.
///
/// Thread safety: all members may be called concurrently, but for those about fork. No lock is held
/// while the system reserves or takes back memory, but for one among allocations that all need more.
/// All bookkeeping lies outside of the shared memory: a stray write of a borrower cannot harm it.
class Pool final : public ExtentOwner {
 public:
  static constexpr std::uint64_t kOwnSegment = std::uint64_t{32} << 20;
  static constexpr std::chrono::milliseconds kDecay{1000};
  static constexpr std::uint64_t kAll = ~std::uint64_t{0};

  Pool(Backend& backend, int ordinal, SegmentKind kind, std::string owner, SegmentTable& segments);
  /// The segments leave the table. REQUIRES: no extent is in use.
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  /// Called (without locks held, and must not throw) when freed memory begins to lie idle: somebody has to
  /// call trim() until it says that nothing is waiting any more. Set it before the first allocation.
  std::function<void()> on_idle;

  /// Aligned to 64 bytes, from 32 KiB on to a page. 0 bytes gives an extent of 64. The bytes are
  /// whatever was there before. Throws out_of_memory (with the numbers), out_of_descriptors,
  /// out_of_mappings; nothing is changed then.
  Extent allocate(std::uint64_t bytes);
  /// `extent` as allocate() gave it; only its segment and offset matter.
  void free(const Extent& extent) noexcept override;

  struct Trimmed {
    std::uint64_t bytes = 0;  ///< given back now
    bool waiting = false;     ///< there is more, now or later: call again
  };
  /// Gives back what has been idle for kDecay at `now`, about `most` bytes of it: a GiB takes the system 0.1 s.
  /// Cheap to call often.
  Trimmed trim(std::chrono::steady_clock::time_point now, std::uint64_t most = kAll) noexcept;
  /// Gives back everything that is not in use; returns how many bytes.
  std::uint64_t trim_all() noexcept;
  /// What its guard has kept may go back now: trim() looks again.
  void look_again() noexcept;
  PoolStats stats() const;

  /// Before and after fork(2), so that a child never inherits a pool in the middle of a change.
  void prepare_fork();
  void finish_fork();
  /// In a forked child: the memory is the parent's, and the destructor leaves it alone. Nothing else may
  /// be called any more.
  void abandon() noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace onecopy
