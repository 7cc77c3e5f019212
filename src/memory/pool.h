// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device/backend.h"
#include "memory/known_segments.h"
#include "os/mutex.h"

namespace onecopy {

/// A piece of a segment that a Pool has allocated.
struct Extent {
  std::uint32_t segment = 0;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;  ///< usable bytes; at least the size that was requested
  std::byte* data = nullptr;
};

/// The object to which an extent is freed. Thread safety: free() may be called concurrently, and must not throw.
class ExtentOwner {
 public:
  virtual void free(const Extent& extent) noexcept = 0;

 protected:
  ~ExtentOwner() = default;
};

/// The description of a segment for handles and listings.
struct SegmentInfo {
  std::uint32_t number = 0;
  SegmentKind kind = SegmentKind::memfd;
  Device device;
  std::uint64_t size = 0;       ///< the size of the address range in bytes
  std::uint64_t committed = 0;  ///< the physical memory that is reserved, in bytes
  const DeviceIdentity* identity = nullptr;
};

/// An interface that decides whether pages of a segment may go back to the system. Pages that a driver has pinned, in
/// any process, must stay: a card would continue to use the old pages. Thread safety: as needed by its user.
class PageGuard {
 public:
  /// Returns whether pages may go back. If true, no process pins pages of the segment until end_hole().
  virtual bool begin_hole(std::uint32_t segment) noexcept = 0;
  virtual void end_hole(std::uint32_t segment) noexcept = 0;

 protected:
  ~PageGuard() = default;
};

/// The segments of this process, of all pools, by number. Numbers start at 1 and are never reused. Thread safety: all
/// members may be called concurrently, except fork's. No lock is held while a vendor is called.
class SegmentTable {
 public:
  ~SegmentTable();

  /// A callback for the end of a segment, called without locks after the segment has left the table. The callback must
  /// be set before the first pool. If it throws bad_alloc, tell_retired() calls it again.
  std::function<void(std::uint32_t number)> on_retire;
  /// The guard that is asked before pages of a segment go back to the system; if null, they may. The guard must be set
  /// before the first pool.
  PageGuard* guard = nullptr;

  std::uint32_t next_number() noexcept;
  void add(std::uint32_t number, Device device, std::unique_ptr<DeviceMemory> memory);
  /// Unmaps the segment. REQUIRES: no process uses a block of it.
  void remove(std::uint32_t number) noexcept;
  /// Calls on_retire again where it has failed. Returns true if it fails again.
  bool tell_retired() noexcept;
  /// Gives pages back to the system, see DeviceMemory::decommit(). Returns false, with nothing changed, if the guard
  /// forbids it. REQUIRES: the pages are not in use.
  bool give_back(std::uint32_t number, DeviceMemory& memory, std::uint64_t offset,
                 std::uint64_t bytes) noexcept;
  /// Does what give_back() does for pages that were not counted as reserved.
  bool punch(std::uint32_t number, DeviceMemory& memory, std::uint64_t offset,
             std::uint64_t bytes) noexcept;
  /// Returns the mapped segment, or null if it does not exist. The segment stays mapped while the pointer lives.
  std::shared_ptr<DeviceMemory> memory(std::uint32_t number) const noexcept;
  /// Counts `bytes` of the segment as reserved, or as given back if negative.
  void add_committed(std::uint32_t number, std::int64_t bytes) noexcept;
  /// Exports the segment. Throws stale_handle if it does not exist.
  ExportedMemory export_memory(std::uint32_t number, Access access) const;
  /// Implements DeviceMemory::export_rest(). Throws as above.
  std::vector<Fd> export_rest(std::uint32_t number, std::size_t first) const;
  /// Implements DeviceMemory::allow().
  std::byte* allow(std::uint32_t number, int ordinal) const;
  /// Returns the description, whose `committed` only list() may read. Throws stale_handle if the segment does not exist.
  /// REQUIRES: the caller uses a block of the segment.
  const SegmentInfo& info(std::uint32_t number) const;
  std::vector<SegmentInfo> list() const;
  /// Calls DeviceMemory::remove_name() of all segments. Afterwards no other process can open a segment that had a name.
  void remove_names() noexcept;

  /// Locks the table around fork(2), so that a child never inherits it in the middle of a change.
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }
  /// Marks a forked child's table: its segments stay mapped and exportable, even after the destructor.
  void abandon() noexcept { abandoned_ = true; }

 private:
  struct Entry {
    SegmentInfo info;
    /// The memory, shared by the table, callers inside a vendor's call, and holders that have it pinned.
    std::shared_ptr<DeviceMemory> memory;
  };
  Entry find(std::uint32_t number) const;
  const Entry& entry(std::uint32_t number) const REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::map<std::uint32_t, Entry> entries_ GUARDED_BY(mutex_);
  mutable KnownSegments<SegmentInfo> known_;  ///< written under mutex_
  std::vector<std::uint32_t> retired_
      GUARDED_BY(mutex_);  ///< not reported to on_retire yet; has room for all entries
  std::uint32_t last_ GUARDED_BY(mutex_) = 0;
  bool abandoned_ = false;
};

/// The counts of one pool, read at one moment.
struct PoolStats {
  std::uint64_t live_blocks = 0;
  std::uint64_t live_bytes = 0;  ///< sizes as the pool has rounded them up
  std::uint64_t committed_bytes = 0;
  std::uint64_t peak_committed_bytes = 0;
  std::uint64_t segments = 0;
  std::uint64_t allocations = 0;  ///< all allocations since the beginning
  std::uint64_t warm_bytes = 0;   ///< free, but with physical memory; included in committed_bytes
};

/// An allocator that owns the segments of one device and cuts extents out of them.
///
/// An extent of kOwnSegment bytes or more gets a segment of its own, so that a small extent never keeps a large one
/// allocated. A freed page stays warm for kDecay, because filling a page that was given back costs many times as much;
/// then trim() gives it back. Whenever more memory is reserved, the warm bytes are limited to half of the bytes in use,
/// plus 64 MiB.
///
/// Thread safety: all members may be called concurrently, except fork's. No lock is held while the system reserves or
/// reclaims memory, except one among allocations that all need more. All bookkeeping lies outside of the shared memory,
/// where a borrower's stray write cannot damage it.
class Pool final : public ExtentOwner {
 public:
  static constexpr std::uint64_t kOwnSegment = std::uint64_t{32} << 20;
  static constexpr std::chrono::milliseconds kDecay{1000};
  static constexpr std::uint64_t kAll = ~std::uint64_t{0};

  Pool(Backend& backend, int ordinal, SegmentKind kind, std::string owner, SegmentTable& segments);
  /// Removes the segments from the table. REQUIRES: no extent is in use.
  ~Pool();
  Pool& operator=(Pool&&) = delete;

  /// A callback for freed memory that becomes idle, called without locks held, which must not throw. The owner must
  /// then call trim() until TrimResult::waiting is false. The callback must be set before the first allocation.
  std::function<void()> on_idle;

  /// Allocates an extent, aligned to 64 bytes, or to a page from 32 KiB on. 0 bytes gives an extent of 64. The content
  /// is undefined. Throws out_of_memory (with the numbers), out_of_descriptors, out_of_mappings; nothing has changed
  /// then.
  Extent allocate(std::uint64_t bytes);
  /// Frees an extent of allocate(). Reads only the segment and the offset.
  void free(const Extent& extent) noexcept override;

  struct TrimResult {
    std::uint64_t bytes = 0;  ///< the bytes that were given back by this call
    bool waiting = false;     ///< more is to be given back, now or later, so the caller must call again
  };
  /// Gives back about `max_bytes` of the memory that has been idle for kDecay at `now`; the system takes 0.1 s for a
  /// GiB. Frequent calls are cheap.
  TrimResult trim(std::chrono::steady_clock::time_point now, std::uint64_t max_bytes = kAll) noexcept;
  /// Gives back all memory that is not in use, and returns the number of bytes.
  std::uint64_t trim_all() noexcept;
  /// Makes the next trim() ask the guard again about pages that it has refused.
  void look_again() noexcept;
  PoolStats stats() const;

  /// Locks the pool around fork(2), so that a child never inherits it in the middle of a change.
  void lock() NO_THREAD_SAFETY_ANALYSIS;
  void unlock() NO_THREAD_SAFETY_ANALYSIS;
  /// Abandons the pool in a forked child: the memory is the parent's, and the destructor leaves it alone. REQUIRES: no
  /// other member is called afterwards.
  void abandon() noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace onecopy
