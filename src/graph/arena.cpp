// SPDX-License-Identifier: Apache-2.0
#include "onecopy/graph/arena.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/throw_error.h"
#include "device/backend.h"
#include "device/reservation.h"
#include "graph/page.h"
#include "graph/view.h"

namespace onecopy::graph {

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kPart = 2 * kMiB;  // the least memory that a window gets of its own
constexpr std::size_t kLargestPage = 64 * kMiB;
constexpr std::size_t kMaxBytes = SIZE_MAX / 2;  // rounding up does not overflow
constexpr std::size_t kGrowth = 4;  // a page is at most this many times as large as all pages before it

/// Returns all memory that the device has, which a device may report only after its first use.
std::uint64_t memory_of(Device device) {
  Backend& vendor = backend(device.type);
  vendor.create_chunk(device.index, vendor.granularity());
  for (const DeviceInfo& info : vendor.devices())
    if (info.device == device) return info.total_bytes;
  return 0;
}

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

bool touch(std::span<const Extent> extents, std::size_t from, std::size_t bytes) {
  return std::any_of(extents.begin(), extents.end(), [&](const Extent& extent) {
    return extent.from < from + bytes && from < extent.from + extent.bytes;
  });
}

}  // namespace

std::shared_ptr<Arena> Arena::make(Device device, const ArenaOptions& options) {
  return std::shared_ptr<Arena>(new Arena(device, options));
}

Arena::Arena(Device device, const ArenaOptions& options)
    : device_(device),
      limit_(options.limit_bytes),
      part_bytes_(round_up(kPart, backend(device.type).granularity())),
      has_aliases_(backend(device.type).traits().maps_one_chunk_twice) {}

Arena::~Arena() = default;

std::size_t Arena::pages_end() const noexcept { return pages_.empty() ? 0 : pages_.back().end(); }

/// Returns the end of the page that contains the last of `bytes`. REQUIRES: the page exists.
std::size_t Arena::end_of(std::size_t bytes) const noexcept {
  const auto last = std::partition_point(pages_.begin(), pages_.end(),
                                         [&](const Page& page) { return page.end() < bytes; });
  return last->end();
}

void Arena::check_running() const {
  if (parked_)
    throw Error(ErrorCode::invalid_argument, "the arena is parked: resume() it before graphs are captured");
}

void Arena::check_room(std::size_t bytes) const {
  check_running();
  const std::size_t end = round_up(std::min(bytes, kMaxBytes), part_bytes_);
  if (bytes > kMaxBytes || end > limit_)
    throw_error(ErrorCode::out_of_memory,
                "a capture needs {} bytes of the arena on {}, in pages {}, and its limit is {}; "
                "raise the limit, or run this shape eagerly",
                bytes, device_.str(), end, limit_);
}

Window Arena::open(std::size_t bytes) {
  if (bytes == 0) throw Error(ErrorCode::invalid_argument, "a window of 0 bytes has no addresses");
  const std::lock_guard lock(mutex_);
  check_room(bytes);
  auto view = has_aliases_ ? reserve(bytes) : look_at_common();
  grow(*view, bytes);
  views_.insert(view.get());
  return {shared_from_this(), std::move(view)};
}

Window Arena::open_growing(std::size_t max_bytes) {
  auto view = has_aliases_ ? reserve(max_bytes) : nullptr;
  const std::lock_guard lock(mutex_);
  check_running();
  if (!view) view = look_at_common();
  views_.insert(view.get());
  return {shared_from_this(), std::move(view)};
}

/// Returns a whole number of the largest pages; the last page may reach beyond `bytes`. CUDA places memory of
/// cudaMalloc() behind a reservation that ends elsewhere, so that a program's memory lies far apart (seen with driver
/// 580).
std::size_t Arena::addresses_for(std::size_t bytes) const noexcept {
  const std::size_t unit = round_up(kLargestPage, part_bytes_);
  return round_up(bytes, unit) + unit;
}

std::unique_ptr<Arena::View> Arena::reserve(std::size_t bytes) {
  auto view = std::make_unique<View>();
  view->max_bytes = std::min(bytes, kMaxBytes);
  view->addresses = backend(device_.type).reserve(device_.index, addresses_for(view->max_bytes));
  return view;
}

/// Returns the addresses that all windows share, for as much memory as there may be, because they cannot grow.
/// REQUIRES: mutex_, as do the functions below.
std::unique_ptr<Arena::View> Arena::look_at_common() {
  if (!common_) {
    common_max_ = std::min<std::uint64_t>(limit_, memory_of(device_));
    common_ = backend(device_.type).reserve(device_.index, addresses_for(common_max_));
  }
  auto view = std::make_unique<View>();
  view->addresses = common_;
  view->max_bytes = common_max_;
  return view;
}

void Arena::grow(View& view, std::size_t bytes) {
  check_room(bytes);
  if (bytes > view.max_bytes)
    throw_error(ErrorCode::out_of_mappings,
                "a capture needs {} bytes of the arena on {}, but has addresses for {}", bytes,
                device_.str(), view.max_bytes);
  add_pages(round_up(bytes, part_bytes_));
  const std::size_t before = view.end;
  view.end = std::max(before, end_of(bytes));
  try {
    choose_parts(view, before);
    show(view, before);
  } catch (...) {
    hide(view, before);
    view.in_parts.erase(view.in_parts.lower_bound(before), view.in_parts.end());
    view.end = before;
    trim();
    throw;
  }
  view.bytes = std::max(view.bytes, bytes);
}

/// Adds pages without memory. A page is as large as the gap, since the driver takes as long to map a small one, but not
/// much larger than all pages before it, since a small window maps its last page whole.
void Arena::add_pages(std::size_t end) {
  while (pages_end() < end) {
    const std::size_t largest =
        std::clamp(kGrowth * pages_end(), part_bytes_, round_up(kLargestPage, part_bytes_));
    const std::size_t bytes = std::min(end - pages_end(), largest);
    pages_.emplace_back(device_, pages_end(), bytes, part_bytes_);
  }
}

/// Chooses the pages to map in parts: a page that has memory in parts only. Mapped whole, it would need its memory
/// twice.
void Arena::choose_parts(View& view, std::size_t from) {
  for (const Page& page : pages_)
    if (page.offset() >= from && view.shows(page) && page.is_in_parts())
      view.in_parts.insert(page.offset());
}

/// Maps the shared pages from an offset on; the window's own parts are mapped already.
void Arena::show(View& view, std::size_t from) {
  if (!has_aliases_) from = std::max(from, shown_);
  if (from >= view.end) return;
  for (Page& page : pages_)
    if (page.offset() >= from && view.shows(page)) show_page(view, page);
  view.addresses->allow(device_.index, from, view.end - from, Access::read_write);
  if (!has_aliases_) shown_ = view.end;
}

void Arena::show_page(View& view, Page& page) {
  if (view.shows_whole(page)) return view.addresses->map(page.offset(), page.whole(), 0, page.bytes());
  for (std::size_t at = page.offset(); at < page.end(); at += part_bytes_)
    if (!view.own.contains(at)) view.addresses->map(at, page.part(at), 0, part_bytes_);
}

void Arena::hide_page(View& view, const Page& page) noexcept {
  if (view.shows_whole(page)) return view.addresses->unmap(page.offset(), page.bytes());
  for (std::size_t at = page.offset(); at < page.end(); at += part_bytes_)
    if (!view.own.contains(at)) view.addresses->unmap(at, part_bytes_);
}

/// Unmaps pages from an offset on. Does nothing without aliases, because other windows use the same addresses.
void Arena::hide(View& view, std::size_t from) noexcept {
  if (!has_aliases_) return;
  for (const Page& page : pages_)
    if (page.offset() >= from && view.shows(page)) hide_page(view, page);
}

void Arena::hide_all() noexcept {
  for (View* view : views_) hide(*view, 0);
  if (common_) common_->unmap(0, pages_end());
  shown_ = 0;
}

void Arena::own(View& view, std::span<const Extent> extents) {
  check_running();
  if (!has_aliases_)
    throw_error(ErrorCode::unsupported,
                "memory of {} has one address, which all graphs of an arena share: capture this "
                "graph, which leaves tensors alive, in an arena of its own",
                device_.str());
  for (Page& page : pages_)
    if (view.shows(page)) own_parts(view, page, extents);
  trim();
}

/// Replaces parts of the page by own memory. The window maps the page in parts then.
void Arena::own_parts(View& view, Page& page, std::span<const Extent> extents) {
  Chunks made;
  for (std::size_t at = page.offset(); at < page.end(); at += part_bytes_)
    if (!view.own.contains(at) && touch(extents, at, part_bytes_))
      made.emplace(at, backend(device_.type).create_chunk(device_.index, part_bytes_));
  if (made.empty()) return;
  hide_page(view, page);
  view.in_parts.insert(page.offset());
  for (const auto& [at, chunk] : made) view.addresses->map(at, *chunk, 0, part_bytes_);
  view.own.merge(made);
  show_page(view, page);
  view.addresses->allow(device_.index, page.offset(), page.bytes(), Access::read_write);
}

/// Releases the memory that no window maps.
void Arena::trim() noexcept {
  std::size_t end = 0;
  for (const View* view : views_) end = std::max(end, view->end);
  while (!pages_.empty() && pages_.back().offset() >= end) {
    if (common_) common_->unmap(pages_.back().offset(), pages_.back().bytes());
    pages_.pop_back();
  }
  for (Page& page : pages_) drop_unseen(page);
  shown_ = std::min(shown_, pages_end());
}

void Arena::drop_unseen(Page& page) noexcept {
  bool whole = false, parts = false;
  for (const View* view : views_)
    if (view->shows(page)) (view->shows_whole(page) ? whole : parts) = true;
  page.keep(whole, parts);
}

void Arena::retire(View& view) noexcept {
  const std::lock_guard lock(mutex_);
  if (!parked_) hide(view, 0);
  view.end = 0;
  view.in_parts.clear();
  trim();
}

void Arena::close(View& view) noexcept {
  const std::lock_guard lock(mutex_);
  views_.erase(&view);
  view.addresses.reset();
  trim();
}

void Arena::park() noexcept {
  const std::lock_guard lock(mutex_);
  hide_all();
  for (Page& page : pages_) page.keep(false, false);
  parked_ = true;
}

void Arena::resume() {
  const std::lock_guard lock(mutex_);
  if (!parked_) return;
  try {
    for (View* view : views_) show(*view, 0);
  } catch (...) {
    hide_all();
    for (Page& page : pages_) page.keep(false, false);
    throw;
  }
  parked_ = false;
}

}  // namespace onecopy::graph
