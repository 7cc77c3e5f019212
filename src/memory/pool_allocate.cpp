// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "core/throw_error.h"
#include "device/pinned_ranges.h"
#include "device/reserve_listener.h"
#include "pool_impl.h"

namespace onecopy {

namespace {

constexpr std::uint64_t kFirstShared = std::uint64_t{64} << 20;
constexpr std::uint64_t kLargestShared = std::uint64_t{1} << 30;
constexpr std::uint64_t kLeastAhead = std::uint64_t{256} << 10;
constexpr std::uint64_t kMaxAhead = std::uint64_t{64} << 20;
constexpr std::uint64_t kReturned = std::uint64_t{128} << 10;
constexpr std::uint64_t kAddresses = std::uint64_t{1} << 47;
constexpr std::uint32_t kSmallestPage = 4096;
constexpr std::uint64_t kLargestWhole = std::uint64_t{256} << 20;

[[noreturn]] void throw_shortage(const Error& error, std::uint64_t bytes, const PoolStats& stats) {
  throw Error(error.code(),
              fmt::format("cannot allocate {} bytes: {} (this pool has {} bytes in {} blocks in use)",
                          bytes, error.what(), stats.live_bytes, stats.live_blocks),
              error.vendor_code(), error.domain());
}

}  // namespace

Pool::Impl::Impl(Backend& backend, int ordinal, SegmentKind kind, std::string owner, SegmentTable& segments)
    : backend_(backend),
      ordinal_(ordinal),
      kind_(kind),
      owner_(std::move(owner)),
      table_(segments),
      traits_(backend.traits()),
      unit_(std::max<std::size_t>(kSmallestPage, backend.granularity())),
      page_bytes_(traits_.whole_segments ? kSmallestPage : static_cast<std::uint32_t>(unit_)),
      min_returned_(static_cast<std::uint32_t>((kReturned + page_bytes_ - 1) / page_bytes_)),
      small_(page_bytes_),
      runs_(traits_.whole_segments ? 0 : static_cast<std::uint32_t>(kPinUnit / page_bytes_)) {}

Pool::Impl::~Impl() {
  if (abandoned_) return;
  for (const auto& [number, segment] : segments_) table_.remove(number);
}

Extent Pool::Impl::allocate(std::uint64_t bytes) {
  if (bytes >= kAddresses)
    throw_error(ErrorCode::out_of_memory, "cannot allocate {} bytes: a process can address at most {}",
                bytes, kAddresses);
  bytes = std::max<std::uint64_t>(bytes, 1);
  if (traits_.alignment > 64)
    bytes = (bytes + traits_.alignment - 1) / traits_.alignment * traits_.alignment;
  const auto attempt = [&](Ahead ahead) {
    return bytes < kOwnSegment ? allocate_shared(bytes, ahead) : allocate_own(bytes);
  };
  try {
    return attempt(Ahead::yes);
  } catch (const Error& error) {
    if (!is_shortage(error.code())) throw;
    trim_all();
  }
  try {
    return attempt(Ahead::no);
  } catch (const Error& error) {
    if (!is_shortage(error.code())) throw;
    throw_shortage(error, bytes, stats());
  }
}

Extent Pool::Impl::allocate_shared(std::uint64_t bytes, Ahead ahead) {
  {
    const LockGuard lock(mutex_);
    if (const auto extent = try_warm(bytes)) return *extent;
  }
  return grow(bytes, ahead);
}

std::optional<Extent> Pool::Impl::try_warm(std::uint64_t bytes) {
  if (bytes <= SmallExtents::kLargest) {
    const unsigned size_class = SmallExtents::class_of(bytes);
    if (const auto slot = small_.allocate(size_class))
      return handed_out(segments_.at(slot->segment), slot->offset, SmallExtents::slot_bytes(size_class));
  }
  if (const auto run = runs_.take_warm(pages_for(bytes))) return place(bytes, *run);
  return std::nullopt;
}

/// Makes an extent of pages that belong to no extent.
Extent Pool::Impl::place(std::uint64_t bytes, const PageRun& run) {
  if (bytes <= SmallExtents::kLargest) return place_slot(SmallExtents::class_of(bytes), run);
  Segment& segment = segments_.at(run.segment);
  segment.pages[run.first] = run_mark(run.pages);
  return handed_out(segment, std::uint64_t{run.first} * page_bytes_,
                    std::uint64_t{run.pages} * page_bytes_);
}

/// Makes an extent of a slot. If another thread has added a slab while this one reserved memory, the pages stay free.
Extent Pool::Impl::place_slot(unsigned size_class, const PageRun& run) {
  auto slot = small_.allocate(size_class);
  if (slot) {
    runs_.put(run, PageRuns::Kind::warm, std::chrono::steady_clock::now());
  } else {
    const std::uint32_t slab = small_.add_slab(size_class, run);
    auto& pages = segments_.at(run.segment).pages;
    std::fill_n(pages.begin() + run.first, run.pages, slab_mark(slab));
    slot = small_.allocate(size_class);
  }
  return handed_out(segments_.at(slot->segment), slot->offset, SmallExtents::slot_bytes(size_class));
}

Extent Pool::Impl::grow(std::uint64_t bytes, Ahead ahead) {
  const LockGuard growing(growth_);
  const std::uint32_t pages = pages_for(bytes);
  for (;;) {
    {
      const LockGuard lock(mutex_);
      if (const auto extent = try_warm(bytes)) return *extent;
    }
    make_room(bytes);
    const auto growth = take_cold(pages, ahead);
    if (!growth) {
      add_shared_segment(pages, ahead);
      continue;
    }
    commit(*growth);
    const LockGuard lock(mutex_);
    PageRun run = growth->run;
    note_committed(static_cast<std::int64_t>(run.pages - growth->warm) * page_bytes_);
    if (run.pages > pages)
      runs_.put({run.segment, run.first + pages, run.pages - pages}, PageRuns::Kind::warm,
                std::chrono::steady_clock::now());
    run.pages = pages;
    return place(bytes, run);
  }
}

std::optional<PageRuns::Growth> Pool::Impl::take_cold(std::uint32_t pages, Ahead ahead) {
  const LockGuard lock(mutex_);
  return runs_.take_cold(pages, ahead == Ahead::yes ? pages_ahead() : 0);
}

void Pool::Impl::commit(const PageRuns::Growth& growth) {
  const PageRun& run = growth.run;
  const std::uint64_t offset = std::uint64_t{run.first + growth.warm} * page_bytes_;
  const std::uint64_t bytes = std::uint64_t{run.pages - growth.warm} * page_bytes_;
  DeviceMemory* memory = nullptr;
  {
    const LockGuard lock(mutex_);
    memory = segments_.at(run.segment).memory;
  }
  const ReserveListener silence{{}};  // growth_ is locked
  try {
    memory->populate(offset, bytes);
  } catch (...) {
    table_.punch(run.segment, *memory, offset, bytes);  // a borrower may have pinned some of it
    const LockGuard lock(mutex_);
    runs_.put_back(growth);
    throw;
  }
  table_.add_committed(run.segment, static_cast<std::int64_t>(bytes));
}

/// Adds another large range of addresses, or a smaller one where the address space is scarce.
void Pool::Impl::add_shared_segment(std::uint32_t pages, Ahead ahead) {
  const std::uint64_t least = (std::uint64_t{pages} * page_bytes_ + unit_ - 1) / unit_ * unit_;
  std::uint64_t bytes = std::max(next_shared(ahead), least);
  for (;;) {
    try {
      if (traits_.whole_segments) return add_whole_segment(bytes);
      Segment& segment = create_segment(bytes, false);
      const LockGuard lock(mutex_);
      runs_.put({segment.number, 0, static_cast<std::uint32_t>(bytes / page_bytes_)}, PageRuns::Kind::cold);
      return;
    } catch (const Error& error) {
      if (error.code() == ErrorCode::out_of_descriptors || !is_shortage(error.code()) || bytes / 2 < least)
        throw;
      bytes = std::max(least, bytes / 2 / unit_ * unit_);
    }
  }
}

/// Returns the size of a new shared segment, which grows with the memory in use: small at first, and few segments
/// later.
std::uint64_t Pool::Impl::next_shared(Ahead ahead) const {
  if (!traits_.whole_segments) return std::clamp(largest_shared() * 2, kFirstShared, kLargestShared);
  if (ahead == Ahead::no) return unit_;
  const LockGuard lock(mutex_);
  return std::clamp(stats_.live_bytes / 4 / unit_ * unit_, unit_, kLargestWhole);
}

/// Adds a segment whose pages are all warm from the beginning.
void Pool::Impl::add_whole_segment(std::uint64_t bytes) {
  Segment& segment = create_segment(bytes, false);
  const ReserveListener silence{{}};  // growth_ is locked
  try {
    segment.memory->commit(0, bytes);
  } catch (...) {
    remove_own(segment.number);
    throw;
  }
  table_.add_committed(segment.number, static_cast<std::int64_t>(bytes));
  const LockGuard lock(mutex_);
  note_committed(static_cast<std::int64_t>(bytes));
  runs_.put({segment.number, 0, static_cast<std::uint32_t>(bytes / page_bytes_)}, PageRuns::Kind::warm,
            std::chrono::steady_clock::now());
}

std::uint64_t Pool::Impl::largest_shared() const {
  const LockGuard lock(mutex_);
  std::uint64_t largest = 0;
  for (const auto& [number, segment] : segments_)
    if (!segment.own) largest = std::max(largest, segment.bytes);
  return largest;
}

Extent Pool::Impl::allocate_own(std::uint64_t bytes) {
  bytes = (bytes + unit_ - 1) / unit_ * unit_;
  {
    const LockGuard lock(mutex_);
    if (const auto extent = try_warm_own(bytes)) return *extent;
  }
  make_room(bytes);
  Segment& segment = create_segment(bytes, true);
  try {
    segment.memory->commit(0, bytes);
  } catch (const Error&) {  // memory may be short, and reclaim gave some back
    remove_own(segment.number);
    throw;
  } catch (...) {  // for example Ctrl-C in a listener, which should not wait until gigabytes are given back
    leave(segment);
    throw;
  }
  table_.add_committed(segment.number, static_cast<std::int64_t>(bytes));
  const LockGuard lock(mutex_);
  note_committed(static_cast<std::int64_t>(bytes));
  return handed_out(segment, 0, bytes);
}

std::optional<Extent> Pool::Impl::try_warm_own(std::uint64_t bytes) {
  Segment* best = nullptr;
  if (warm_own_ < bytes) return std::nullopt;
  for (auto& [number, segment] : segments_) {
    if (!segment.own || segment.live || segment.bytes < bytes || segment.bytes - bytes > bytes / 8)
      continue;
    if (!best || segment.bytes < best->bytes) best = &segment;
  }
  if (!best) return std::nullopt;
  best->live = true;
  warm_own_ -= best->bytes;
  return handed_out(*best, 0, best->bytes);
}

/// Creates a segment. References into the map stay valid when it grows.
Pool::Impl::Segment& Pool::Impl::create_segment(std::uint64_t bytes, bool own) {
  const std::uint32_t number = table_.next_number();
  auto memory = backend_.create(ordinal_, bytes, kind_, owner_, number);
  Segment segment;
  segment.number = number;
  segment.memory = memory.get();
  segment.bytes = bytes;
  segment.own = own;
  segment.live = own;
  if (!own) segment.pages.resize(bytes / page_bytes_);
  table_.add(number, Device{backend_.type(), static_cast<std::int16_t>(ordinal_)}, std::move(memory));
  const LockGuard lock(mutex_);
  return segments_.emplace(number, std::move(segment)).first->second;
}

std::uint32_t Pool::Impl::pages_for(std::uint64_t bytes) const noexcept {
  if (bytes <= SmallExtents::kLargest) return small_.slab_pages(SmallExtents::class_of(bytes));
  return static_cast<std::uint32_t>((bytes + page_bytes_ - 1) / page_bytes_);
}

/// Returns a share of the memory in use, so that the first tensor stays cheap, and the calls stay few.
std::uint32_t Pool::Impl::pages_ahead() const noexcept {
  return static_cast<std::uint32_t>(std::clamp(stats_.live_bytes / 8, kLeastAhead, kMaxAhead) /
                                    page_bytes_);
}

Extent Pool::Impl::handed_out(const Segment& segment, std::uint64_t offset, std::uint64_t bytes) noexcept {
  ++stats_.live_blocks;
  ++stats_.allocations;
  stats_.live_bytes += bytes;
  std::byte* data = segment.memory->data();  // null for devices whose memory the host cannot access
  return {segment.number, offset, bytes, data ? data + offset : nullptr};
}

void Pool::Impl::note_committed(std::int64_t bytes) noexcept {
  stats_.committed_bytes += static_cast<std::uint64_t>(bytes);
  stats_.peak_committed_bytes = std::max(stats_.peak_committed_bytes, stats_.committed_bytes);
}

}  // namespace onecopy
