// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <unordered_map>

#include "memory/pool.h"
#include "os/mutex.h"
#include "page_runs.h"
#include "small_extents.h"

namespace onecopy {

/// The implementation of a Pool: SmallExtents on top of PageRuns in a few large sparse segments, and one segment for
/// each large extent.
///
/// Locks: `reclaiming_` and `growth_` are taken before `mutex_`. `mutex_` protects all members below it and is never
/// held during a system call. Pages that are neither in PageRuns nor in the page tables belong to the thread that took
/// them.
class Pool::Impl {
 public:
  Impl(Backend& backend, int ordinal, SegmentKind kind, std::string owner, SegmentTable& segments);
  ~Impl();

  Extent allocate(std::uint64_t bytes);
  /// Frees an extent. Returns true if trim() has something to wait for from now on.
  bool free(const Extent& extent);
  TrimResult trim(PoolTime now, std::uint64_t max_bytes);
  std::uint64_t trim_all();
  void look_again();
  PoolStats stats() const;
  void lock() ACQUIRE(reclaiming_, growth_, mutex_);
  void unlock() RELEASE(reclaiming_, growth_, mutex_);
  void abandon() noexcept { abandoned_ = true; }

 private:
  struct Segment {
    std::uint32_t number = 0;
    DeviceMemory* memory = nullptr;  // the segment table owns it
    std::uint64_t bytes = 0;
    bool own = false;                  // the segment consists of one extent
    bool live = false;                 // for an own segment: the extent is in use
    PoolTime freed_at;                 // for an own segment that is not in use: when it was freed
    std::vector<std::uint32_t> pages;  // for a shared segment: the mark of each page
  };

  // An entry of a page table is 0, or a slab (at each of its pages), or a run (at its first page).
  static std::uint32_t slab_mark(std::uint32_t slab) noexcept { return slab << 1 | 1; }
  static std::uint32_t run_mark(std::uint32_t pages) noexcept { return pages << 1; }

  // allocate
  enum class Ahead : bool { no, yes };  // reserve more than is needed now?
  Extent allocate_shared(std::uint64_t bytes, Ahead ahead);
  std::optional<Extent> try_warm(std::uint64_t bytes) REQUIRES(mutex_);
  Extent place(std::uint64_t bytes, const PageRun& run) REQUIRES(mutex_);
  Extent place_slot(unsigned size_class, const PageRun& run) REQUIRES(mutex_);
  Extent grow(std::uint64_t bytes, Ahead ahead);
  std::optional<PageRuns::Growth> take_cold(std::uint32_t pages, Ahead ahead);
  void commit(const PageRuns::Growth& growth);
  void add_shared_segment(std::uint32_t pages, Ahead ahead);
  void add_whole_segment(std::uint64_t bytes);
  std::uint64_t next_shared(Ahead ahead) const;
  std::uint64_t largest_shared() const;
  Extent allocate_own(std::uint64_t bytes);
  std::optional<Extent> try_warm_own(std::uint64_t bytes) REQUIRES(mutex_);
  Segment& create_segment(std::uint64_t bytes, bool own);
  /// Returns the pages for an extent. Reads only what never changes in small_.
  std::uint32_t pages_for(std::uint64_t bytes) const noexcept NO_THREAD_SAFETY_ANALYSIS;
  std::uint32_t pages_ahead() const noexcept REQUIRES(mutex_);
  Extent handed_out(const Segment& segment, std::uint64_t offset, std::uint64_t bytes) noexcept
      REQUIRES(mutex_);
  void note_committed(std::int64_t bytes) noexcept REQUIRES(mutex_);

  // free
  void free_locked(const Extent& extent) REQUIRES(mutex_);
  void free_shared(Segment& segment, std::uint64_t offset) REQUIRES(mutex_);
  void free_pages(Segment& segment, const PageRun& run) REQUIRES(mutex_);
  void taken_back(std::uint64_t bytes) noexcept REQUIRES(mutex_);

  // give back
  std::uint64_t reclaim(PoolTime now, PoolTime until, std::uint32_t least_pages, std::uint64_t max_bytes);
  void make_room(std::uint64_t bytes);
  bool decommit(const PageRun& run);
  void take_idle_own(PoolTime until) REQUIRES(mutex_);
  void leave(const Segment& segment);
  std::uint64_t give_back_own(std::uint64_t max_bytes);
  std::optional<std::uint32_t> take_oldest_own() REQUIRES(mutex_);
  void remove_own(std::uint32_t number);
  std::optional<std::uint32_t> take_idle_whole(PoolTime until) REQUIRES(mutex_);
  std::uint64_t warm_bytes() const noexcept REQUIRES(mutex_);
  bool has_waiting() const REQUIRES(mutex_);

  Backend& backend_;
  const int ordinal_;
  const SegmentKind kind_;
  const std::string owner_;
  SegmentTable& table_;
  const BackendTraits traits_;
  const std::uint64_t unit_;  // the unit of segment sizes
  const std::uint32_t
      page_bytes_;  // the piece that segments are cut into; less than unit_ where segments are committed whole
  const std::uint32_t min_returned_;  // pages: shorter runs between blocks in use stay warm

  Mutex reclaiming_;  // held while memory is given back, for which an allocation that finds no memory waits
  Mutex growth_;      // one thread at a time reserves memory in shared segments
  mutable Mutex mutex_;
  std::unordered_map<std::uint32_t, Segment> segments_ GUARDED_BY(mutex_);
  SmallExtents small_ GUARDED_BY(mutex_);
  PageRuns runs_ GUARDED_BY(mutex_);
  /// An own segment that is being given back; no allocation takes it.
  struct SegmentReturn {
    std::uint32_t number;
    DeviceMemory* memory;
    std::uint64_t left;  ///< bytes that still have memory, counted from the segment's beginning
  };
  std::vector<SegmentReturn> leaving_ GUARDED_BY(mutex_);
  std::uint64_t warm_own_ GUARDED_BY(mutex_) = 0;  // the bytes of own segments that are not in use
  PoolTime looked_at_
      GUARDED_BY(mutex_);  // the last look of trim(); long ago if that look left memory that it had found
  std::atomic<bool> is_kept_pinned_{false};  // the last look left runs that are pinned
  bool waiting_ GUARDED_BY(mutex_) = false;  // memory was freed since trim() found nothing to wait for
  PoolStats stats_ GUARDED_BY(mutex_);
  bool abandoned_ = false;
};

}  // namespace onecopy
