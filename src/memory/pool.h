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
#include "os/mutex.h"

namespace onecopy {

/// A piece of a segment, handed out by a Pool.
struct Extent {
  std::uint32_t segment = 0;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;  ///< bytes usable; at least the size that was asked for
  std::byte* data = nullptr;
};

/// The object that an extent goes back to. Thread safety: free() may be called concurrently. It must not throw.
class ExtentOwner {
 public:
  virtual void free(const Extent& extent) noexcept = 0;

 protected:
  ~ExtentOwner() = default;
};

/// A segment as handles and listings describe it.
struct SegmentInfo {
  std::uint32_t number = 0;
  SegmentKind kind = SegmentKind::memfd;
  Device device;
  std::uint64_t size = 0;       ///< address range in bytes
  std::uint64_t committed = 0;  ///< bytes of physical memory reserved
  const DeviceIdentity* identity = nullptr;
};

/// Says whether pages of a segment may go back to the system. Pages that a driver has pinned, in any process, must
/// not: a card would go on using the old pages. Thread safety: as its user's.
class PageGuard {
 public:
  /// If true, no process pins pages of the segment until end_hole().
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

  /// Called (without locks held) after a segment has left the table. Set it before the first pool. If it throws
  /// bad_alloc, tell_retired() calls it again.
  std::function<void(std::uint32_t number)> on_retire;
  /// Asked before pages of a segment go back to the system; if null, they may. Set it before the first pool.
  PageGuard* guard = nullptr;

  std::uint32_t next_number() noexcept;
  void add(std::uint32_t number, Device device, std::unique_ptr<DeviceMemory> memory);
  /// Unmaps the segment. REQUIRES: no block of it is in use anywhere.
  void remove(std::uint32_t number) noexcept;
  /// Calls on_retire where it has failed. Returns true if it has failed again.
  bool tell_retired() noexcept;
  /// Gives pages back to the system, see DeviceMemory::decommit(). If the guard forbids it, returns false and changes
  /// nothing. REQUIRES: the pages are not in use.
  bool give_back(std::uint32_t number, DeviceMemory& memory, std::uint64_t offset,
                 std::uint64_t bytes) noexcept;
  /// give_back() of pages that were not counted as reserved.
  bool punch(std::uint32_t number, DeviceMemory& memory, std::uint64_t offset,
             std::uint64_t bytes) noexcept;
  /// The segment as it is mapped here; null if there is none. The segment stays mapped as long as the pointer lives.
  std::shared_ptr<DeviceMemory> memory(std::uint32_t number) const noexcept;
  /// Counts `bytes` of the segment as reserved, or as given back if negative.
  void add_committed(std::uint32_t number, std::int64_t bytes) noexcept;
  /// Throws stale_handle if there is no such segment (any more).
  ExportedMemory export_memory(std::uint32_t number, Access access) const;
  /// See DeviceMemory::export_rest(). Throws as above.
  std::vector<Fd> export_rest(std::uint32_t number, std::size_t first) const;
  /// See DeviceMemory::allow().
  std::byte* allow(std::uint32_t number, int ordinal) const;
  SegmentInfo info(std::uint32_t number) const;
  std::vector<SegmentInfo> list() const;
  /// Calls DeviceMemory::remove_name() of all segments. Afterwards no other process can open a segment that had a name.
  void remove_names() noexcept;

  /// Before and after fork(2), so that a child never inherits a table in the middle of a change.
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }
  /// In a forked child: the segments stay mapped and exportable, also when this is destroyed.
  void abandon() noexcept { abandoned_ = true; }

 private:
  struct Entry {
    const DeviceIdentity* identity;
    /// Shared by the table, callers in a vendor's call, and holders that have it pinned.
    std::shared_ptr<DeviceMemory> memory;
    std::uint64_t committed = 0;
  };
  Entry find(std::uint32_t number) const;
  const Entry& entry(std::uint32_t number) const REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::map<std::uint32_t, Entry> entries_ GUARDED_BY(mutex_);
  std::vector<std::uint32_t> retired_
      GUARDED_BY(mutex_);  ///< and on_retire has not been told; has room for all entries
  std::uint32_t last_ GUARDED_BY(mutex_) = 0;
  bool abandoned_ = false;
};

/// Numbers of one pool, read at one moment.
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
/// Extents of kOwnSegment bytes and more are segments of their own, so that a small one never pins a large one. A
/// freed page stays warm for kDecay, because a page given back costs many times a warm one to fill again. trim()
/// gives it back after that. Whenever more memory is reserved, the warm bytes are at most half of the bytes in use,
/// plus 64 MiB.
///
/// Thread safety: all members may be called concurrently, but for those about fork. No lock is held while the system
/// reserves or takes back memory, but for one among allocations that all need more. All bookkeeping lies outside of
/// the shared memory: a stray write of a borrower cannot harm it.
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

  /// Called (without locks held, and must not throw) when freed memory begins to lie idle. The caller must then call
  /// trim() until it returns no `waiting`. Set it before the first allocation.
  std::function<void()> on_idle;

  /// Aligned to 64 bytes, from 32 KiB on to a page. 0 bytes gives an extent of 64. The bytes are not cleared. Throws
  /// out_of_memory (with the numbers), out_of_descriptors, out_of_mappings; nothing is changed then.
  Extent allocate(std::uint64_t bytes);
  /// `extent` as allocate() gave it; only its segment and offset matter.
  void free(const Extent& extent) noexcept override;

  struct TrimResult {
    std::uint64_t bytes = 0;  ///< given back now
    bool waiting = false;     ///< there is more, now or later: call again
  };
  /// Gives back memory that has been idle for kDecay at `now`, about `most` bytes of it: a GiB takes the system 0.1 s.
  /// Cheap to call often.
  TrimResult trim(std::chrono::steady_clock::time_point now, std::uint64_t most = kAll) noexcept;
  /// Gives back everything that is not in use; returns how many bytes.
  std::uint64_t trim_all() noexcept;
  /// The guard may allow now a page that it has refused before: the next trim() looks again.
  void look_again() noexcept;
  PoolStats stats() const;

  /// Before and after fork(2), so that a child never inherits a pool in the middle of a change.
  void lock() NO_THREAD_SAFETY_ANALYSIS;
  void unlock() NO_THREAD_SAFETY_ANALYSIS;
  /// In a forked child: the memory is the parent's, and the destructor leaves it alone. REQUIRES: no other member is
  /// called any more.
  void abandon() noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace onecopy
