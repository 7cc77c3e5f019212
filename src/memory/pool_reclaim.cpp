// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/point.h"
#include "os/log.h"
#include "pool_impl.h"

namespace onecopy {

namespace {

constexpr std::uint64_t kWarmSlack = std::uint64_t{64} << 20;
constexpr std::chrono::milliseconds kLookEvery{100};

}  // namespace

bool Pool::Impl::free(const Extent& extent) {
  const LockGuard lock(mutex_);
  const bool waited = waiting_;
  free_locked(extent);
  return waiting_ && !waited;
}

void Pool::Impl::free_locked(const Extent& extent) {
  const auto at = segments_.find(extent.segment);
  Segment* segment = at == segments_.end() ? nullptr : &at->second;
  if (segment && !segment->own && extent.offset < segment->bytes)
    return free_shared(*segment, extent.offset);
  if (!segment || !segment->own || !segment->live) {
    log_error("ignored a free() of segment {} offset {}: no extent in use begins there", extent.segment,
              extent.offset);
    return;
  }
  segment->live = false;
  segment->freed_at = std::chrono::steady_clock::now();
  warm_own_ += segment->bytes;
  waiting_ = true;
  taken_back(segment->bytes);
}

void Pool::Impl::free_shared(Segment& segment, std::uint64_t offset) {
  const auto page = static_cast<std::uint32_t>(offset / page_bytes_);
  const std::uint32_t mark = segment.pages[page];
  std::uint64_t bytes = 0;
  if ((mark & 1) != 0) {
    const auto freed = small_.free(mark >> 1, offset);
    bytes = freed.bytes;
    if (freed.slab) free_pages(segment, *freed.slab);
    waiting_ = waiting_ || small_.has_empty();
  } else if (mark != 0 && offset % page_bytes_ == 0) {
    bytes = std::uint64_t{mark >> 1} * page_bytes_;
    free_pages(segment, {segment.number, page, mark >> 1});
  }
  if (bytes == 0)
    log_error("ignored a free() of segment {} offset {}: no extent in use begins there", segment.number,
              offset);
  else taken_back(bytes);
}

void Pool::Impl::free_pages(Segment& segment, const PageRun& run) {
  const std::uint32_t marked = (segment.pages[run.first] & 1) != 0 ? run.pages : 1;
  std::fill_n(segment.pages.begin() + run.first, marked, 0);
  waiting_ = true;
  runs_.put(run, PageRuns::Kind::warm, std::chrono::steady_clock::now());
}

void Pool::Impl::taken_back(std::uint64_t bytes) noexcept {
  --stats_.live_blocks;
  stats_.live_bytes -= bytes;
}

Pool::TrimResult Pool::Impl::trim(PoolTime now, std::uint64_t max_bytes) {
  {
    const LockGuard lock(mutex_);
    if (now - looked_at_ < kLookEvery && now >= looked_at_) return {0, waiting_};
    if (!waiting_) return {};
    looked_at_ = now;
  }
  const std::uint64_t bytes = reclaim(now, now - kDecay, min_returned_, max_bytes);
  const LockGuard lock(mutex_);
  if (bytes >= max_bytes) looked_at_ = {};
  // If the rest is all pinned, trim() need not be called for it: look_again() or the next free() makes it look again.
  return {bytes, waiting_ = (bytes != 0 || !is_kept_pinned_) && has_waiting()};
}

void Pool::Impl::look_again() {
  const LockGuard lock(mutex_);
  waiting_ = true;
}

std::uint64_t Pool::Impl::trim_all() {
  return reclaim(std::chrono::steady_clock::now(), PoolTime::max(), 1, kAll);
}

/// Gives memory back and returns the number of bytes: `max_bytes` or more if some was left.
std::uint64_t Pool::Impl::reclaim(PoolTime now, PoolTime until, std::uint32_t least_pages,
                                  std::uint64_t max_bytes) {
  const LockGuard whole(reclaiming_);
  is_kept_pinned_ = false;
  std::vector<PageRun> runs;
  {
    const LockGuard lock(mutex_);
    for (const PageRun& slab : small_.take_idle(now, until)) {
      Segment& segment = segments_.at(slab.segment);
      std::fill_n(segment.pages.begin() + slab.first, slab.pages, 0);
      runs_.put(slab, PageRuns::Kind::warm, std::min(now, until));
    }
    if (!traits_.whole_segments) runs = runs_.take_idle(until, least_pages, max_bytes / page_bytes_);
    take_idle_own(until);
  }
  std::uint64_t bytes = 0;
  for (const PageRun& run : runs)
    if (decommit(run)) bytes += std::uint64_t{run.pages} * page_bytes_;
    else is_kept_pinned_ = true;
  while (bytes < max_bytes) {
    const std::uint64_t more = give_back_own(max_bytes - bytes);
    if (more == 0) break;
    bytes += more;
  }
  return bytes;
}

/// Gives back a part of a segment that is leaving, or one whole segment where memory comes and goes with segments.
/// Returns 0 if there is none.
std::uint64_t Pool::Impl::give_back_own(std::uint64_t max_bytes) {
  SegmentReturn leaving{};
  std::uint64_t bytes = 0;
  {
    const LockGuard lock(mutex_);
    if (leaving_.empty()) return 0;
    leaving = leaving_.back();
    leaving_.pop_back();
    bytes = traits_.whole_segments ? leaving.left
                                   : std::min(leaving.left, std::max(unit_, max_bytes / unit_ * unit_));
  }
  leaving.left -= bytes;
  if (leaving.left == 0) {
    remove_own(leaving.number);
    return bytes;
  }
  point("pool.decommit");
  if (!table_.give_back(leaving.number, *leaving.memory, leaving.left, bytes)) {
    remove_own(leaving.number);  // whole: a holder that has it pinned keeps it
    return bytes + leaving.left;
  }
  const LockGuard lock(mutex_);
  leaving_.push_back(leaving);
  return bytes;
}

/// Takes a segment without extents in use, where memory comes and goes with segments.
std::optional<std::uint32_t> Pool::Impl::take_idle_whole(PoolTime until) {
  if (!traits_.whole_segments) return std::nullopt;
  for (const auto& [number, segment] : segments_) {
    const auto pages = static_cast<std::uint32_t>(segment.bytes / page_bytes_);
    if (segment.own || !runs_.is_all_warm(number, pages, until)) continue;
    runs_.drop(number);
    note_committed(-static_cast<std::int64_t>(segment.bytes));
    return number;
  }
  return std::nullopt;
}

/// Keeps the warm bytes below half of the bytes in use, plus a constant. Called before more memory is reserved.
void Pool::Impl::make_room(std::uint64_t bytes) {
  for (;;) {
    std::optional<PageRun> run;
    std::optional<std::uint32_t> own;
    {
      const LockGuard lock(mutex_);
      if (warm_bytes() <= (stats_.live_bytes + bytes) / 2 + kWarmSlack) return;
      own = take_oldest_own();
      if (!own) own = take_idle_whole(PoolTime::max());
      if (!own && !traits_.whole_segments) run = runs_.take_largest_warm(min_returned_);
    }
    if (!own && !run) return;
    if (own) remove_own(*own);
    if (run && !decommit(*run)) return;
  }
}

/// Gives back pages that were taken out of the free ones, and the whole segment if no other part of it is in use.
/// Returns false if the pages are pinned: they are free and warm then.
bool Pool::Impl::decommit(const PageRun& run) {
  const std::uint64_t bytes = std::uint64_t{run.pages} * page_bytes_;
  DeviceMemory* memory = nullptr;
  {
    const LockGuard lock(mutex_);
    memory = segments_.at(run.segment).memory;
  }
  point("pool.decommit");
  if (!table_.give_back(run.segment, *memory, std::uint64_t{run.first} * page_bytes_, bytes)) {
    const LockGuard lock(mutex_);
    runs_.put(run, PageRuns::Kind::warm, std::chrono::steady_clock::now());
    return false;
  }
  bool remove = false;
  {
    const LockGuard lock(mutex_);
    note_committed(-static_cast<std::int64_t>(bytes));
    runs_.put(run, PageRuns::Kind::cold);
    const auto at = segments_.find(run.segment);
    remove =
        runs_.take_if_all_cold(run.segment, static_cast<std::uint32_t>(at->second.bytes / page_bytes_));
    if (remove) segments_.erase(at);
  }
  if (remove) table_.remove(run.segment);
  return true;
}

void Pool::Impl::take_idle_own(PoolTime until) {
  while (const auto whole = take_idle_whole(until)) {
    const Segment& segment = segments_.at(*whole);
    leaving_.push_back({segment.number, segment.memory, segment.bytes});
  }
  if (warm_own_ == 0) return;
  for (auto& [number, segment] : segments_) {
    if (!segment.own || segment.live || segment.freed_at > until) continue;
    leaving_.push_back({number, segment.memory, segment.bytes});
    segment.live = true;  // being removed: no other thread takes it
    warm_own_ -= segment.bytes;
    note_committed(-static_cast<std::int64_t>(segment.bytes));
  }
}

/// Moves a segment to the ones that trim() gives back step by step. Only the pages that were reserved, at the segment's
/// beginning, count. REQUIRES: no page of the segment was ever used.
void Pool::Impl::leave(const Segment& segment) {
  const std::uint64_t there = segment.memory->present();
  table_.add_committed(segment.number, static_cast<std::int64_t>(there));
  const LockGuard lock(mutex_);
  leaving_.push_back({segment.number, segment.memory, std::max<std::uint64_t>(there, 1)});
  waiting_ = true;
  looked_at_ = {};
}

std::optional<std::uint32_t> Pool::Impl::take_oldest_own() {
  Segment* oldest = nullptr;
  if (warm_own_ == 0) return std::nullopt;
  for (auto& [number, segment] : segments_)
    if (segment.own && !segment.live && (!oldest || segment.freed_at < oldest->freed_at)) oldest = &segment;
  if (!oldest) return std::nullopt;
  oldest->live = true;
  warm_own_ -= oldest->bytes;
  note_committed(-static_cast<std::int64_t>(oldest->bytes));
  return oldest->number;
}

void Pool::Impl::remove_own(std::uint32_t number) {
  {
    const LockGuard lock(mutex_);
    segments_.erase(number);
  }
  table_.remove(number);
}

std::uint64_t Pool::Impl::warm_bytes() const noexcept {
  return warm_own_ + runs_.warm_pages() * page_bytes_;
}

bool Pool::Impl::has_waiting() const {
  if (small_.has_empty() || warm_own_ > 0 || !leaving_.empty()) return true;
  if (!traits_.whole_segments) return runs_.has_returnable(min_returned_);
  for (const auto& [number, segment] : segments_)
    if (!segment.own &&
        runs_.is_all_warm(number, static_cast<std::uint32_t>(segment.bytes / page_bytes_), PoolTime::max()))
      return true;
  return false;
}

PoolStats Pool::Impl::stats() const {
  const LockGuard lock(mutex_);
  PoolStats stats = stats_;
  stats.segments = segments_.size();
  stats.warm_bytes = warm_bytes();
  return stats;
}

void Pool::Impl::lock() {
  reclaiming_.lock();
  growth_.lock();
  mutex_.lock();
}

void Pool::Impl::unlock() {
  mutex_.unlock();
  growth_.unlock();
  reclaiming_.unlock();
}

}  // namespace onecopy
