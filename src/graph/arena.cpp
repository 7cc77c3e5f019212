// SPDX-License-Identifier: Apache-2.0
#include "onecopy/graph/arena.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

#include "device/backend.h"
#include "device/reservation.h"
#include "onecopy/core/error.h"

namespace onecopy::graph {

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kSmallestPage = 2 * kMiB;
constexpr std::size_t kLargestPage = 64 * kMiB;
constexpr std::size_t kSmallPagesUpTo = 256 * kMiB;

/// All that the device has. A device may say it from its first use on only.
std::uint64_t memory_of(Device device) {
  Backend& vendor = backend(device.type);
  vendor.create_chunk(device.index, vendor.granularity());
  for (const DeviceInfo& info : vendor.devices())
    if (info.device == device) return info.total_bytes;
  return 0;
}

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

/// Where a window lies. `end` is where its last page ends; `own` are its own pages, by their offsets.
struct Arena::View {
  std::shared_ptr<Reservation> addresses;  // shared by all windows where memory has one address
  std::size_t bytes = 0;
  std::size_t end = 0;
  std::map<std::size_t, std::unique_ptr<PhysicalChunk>> own{};

  std::size_t own_bytes() const {
    std::size_t sum = 0;
    for (const auto& [offset, chunk] : own) sum += chunk->size();
    return sum;
  }
};

std::shared_ptr<Arena> Arena::make(Device device, const ArenaOptions& options) {
  return std::shared_ptr<Arena>(new Arena(device, options));
}

Arena::Arena(Device device, const ArenaOptions& options)
    : device_(device),
      limit_(options.limit_bytes),
      granularity_(backend(device.type).granularity()),
      has_aliases_(backend(device.type).traits().maps_one_chunk_twice) {}

Arena::~Arena() = default;

/// Few pages for large windows, and less than a hundredth of them unused.
std::size_t Arena::page_at(std::size_t offset) const noexcept {
  const std::size_t bytes =
      offset < kSmallPagesUpTo ? kSmallestPage : std::min(std::bit_floor(offset / 128), kLargestPage);
  return round_up(bytes, granularity_);
}

/// Where the page with the last of so many bytes ends.
std::size_t Arena::end_of(std::size_t bytes) const noexcept {
  std::size_t end = 0;
  while (end < bytes) end += page_at(end);
  return end;
}

std::size_t Arena::pages_end() const noexcept {
  return pages_.empty() ? 0 : pages_.back().offset + pages_.back().bytes;
}

void Arena::check_running() const {
  if (parked_)
    throw Error(ErrorCode::invalid_argument, "the arena is parked: resume() it before graphs are captured");
}

void Arena::check_room(std::size_t bytes, std::size_t end) const {
  check_running();
  if (end > limit_)
    throw Error(
        ErrorCode::out_of_memory,
        fmt::format("a capture needs {} bytes of the arena on {}, in pages {}, and its limit is {}; "
                    "raise the limit, or run this shape eagerly",
                    bytes, device_.str(), end, limit_));
}

Window Arena::open(std::size_t bytes) {
  if (bytes == 0) throw Error(ErrorCode::invalid_argument, "a window of 0 bytes has no addresses");
  const std::lock_guard lock(mutex_);
  check_room(bytes, end_of(bytes));
  auto view = has_aliases_ ? reserve(bytes) : look_at_common();
  grow(*view, bytes);
  views_.insert(view.get());
  return {shared_from_this(), std::move(view)};
}

Window Arena::open_growing(std::size_t most) {
  auto view = has_aliases_ ? reserve(most) : nullptr;
  const std::lock_guard lock(mutex_);
  check_running();
  if (!view) view = look_at_common();
  views_.insert(view.get());
  return {shared_from_this(), std::move(view)};
}

std::unique_ptr<Arena::View> Arena::reserve(std::size_t bytes) {
  auto view = std::make_unique<View>();
  view->addresses = backend(device_.type).reserve(device_.index, end_of(bytes));
  return view;
}

/// REQUIRES: mutex_, as those below. The addresses are for as much memory as there may be: they cannot grow.
std::unique_ptr<Arena::View> Arena::look_at_common() {
  if (!common_) {
    const std::uint64_t most = std::min<std::uint64_t>(limit_, memory_of(device_));
    common_ = backend(device_.type).reserve(device_.index, end_of(most));
  }
  auto view = std::make_unique<View>();
  view->addresses = common_;
  return view;
}

void Arena::grow(View& view, std::size_t bytes) {
  const std::size_t before = view.end;
  const std::size_t end = std::max(before, end_of(bytes));
  check_room(bytes, end);
  if (end > view.addresses->size())
    throw Error(ErrorCode::out_of_mappings,
                fmt::format("a capture needs {} bytes of the arena on {}, and has addresses for {}", bytes,
                            device_.str(), view.addresses->size()));
  try {
    grow_to(end);
    show(view, before, end);
  } catch (...) {
    if (has_aliases_) view.addresses->unmap(before, end - before);
    trim();
    throw;
  }
  view.end = end;
  view.bytes = std::max(view.bytes, bytes);
}

void Arena::grow_to(std::size_t end) {
  while (pages_end() < end) {
    const std::size_t offset = pages_end();
    const std::size_t bytes = page_at(offset);
    pages_.push_back({offset, bytes, backend(device_.type).create_chunk(device_.index, bytes)});
  }
}

/// Maps the pages in a range of whole ones; a window's own are there already.
void Arena::show(View& view, std::size_t from, std::size_t end) {
  if (!has_aliases_) from = std::max(from, shown_);
  if (from >= end) return;
  for (const Page& page : pages_) {
    if (page.offset < from || page.offset >= end || view.own.contains(page.offset)) continue;
    view.addresses->map(page.offset, *page.chunk, 0, page.bytes);
  }
  view.addresses->allow(device_.index, from, end - from, Access::read_write);
  if (!has_aliases_) shown_ = end;
}

/// Has no effect without aliases: other windows show the pages there, too.
void Arena::hide(View& view) noexcept {
  if (!has_aliases_) return;
  for (const Page& page : pages_)
    if (page.offset < view.end && !view.own.contains(page.offset))
      view.addresses->unmap(page.offset, page.bytes);
}

void Arena::hide_all() noexcept {
  for (View* view : views_) hide(*view);
  if (common_) common_->unmap(0, pages_end());
  shown_ = 0;
}

void Arena::own(View& view, std::span<const Extent> extents) {
  check_running();
  if (!has_aliases_)
    throw Error(
        ErrorCode::unsupported,
        fmt::format("memory of {} has one address, which all graphs of an arena share: capture this "
                    "graph, which leaves tensors alive, in an arena of its own",
                    device_.str()));
  for (const Page& page : pages_) {
    if (page.offset >= view.end || view.own.contains(page.offset)) continue;
    const bool touched = std::any_of(extents.begin(), extents.end(), [&](const Extent& extent) {
      return extent.from < page.offset + page.bytes && page.offset < extent.from + extent.bytes;
    });
    if (touched) own_page(view, page);
  }
}

void Arena::own_page(View& view, const Page& page) {
  auto chunk = backend(device_.type).create_chunk(device_.index, page.bytes);
  view.addresses->unmap(page.offset, page.bytes);
  view.addresses->map(page.offset, *chunk, 0, page.bytes);
  view.addresses->allow(device_.index, page.offset, page.bytes, Access::read_write);
  view.own.emplace(page.offset, std::move(chunk));
}

/// Gives back the memory that no window shows.
void Arena::trim() noexcept {
  std::size_t end = 0;
  for (const View* view : views_) end = std::max(end, view->end);
  while (!pages_.empty() && pages_.back().offset >= end) {
    if (common_) common_->unmap(pages_.back().offset, pages_.back().bytes);
    pages_.pop_back();
  }
  shown_ = std::min(shown_, pages_end());
}

void Arena::retire(View& view) noexcept {
  const std::lock_guard lock(mutex_);
  if (!parked_) hide(view);
  view.end = 0;
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
  for (Page& page : pages_) page.chunk.reset();
  parked_ = true;
}

void Arena::resume() {
  const std::lock_guard lock(mutex_);
  if (!parked_) return;
  try {
    for (Page& page : pages_) page.chunk = backend(device_.type).create_chunk(device_.index, page.bytes);
    for (View* view : views_) show(*view, 0, view->end);
  } catch (...) {
    hide_all();
    for (Page& page : pages_) page.chunk.reset();
    throw;
  }
  parked_ = false;
}

Footprint Arena::footprint() const {
  const std::lock_guard lock(mutex_);
  return measure();
}

std::optional<Footprint> Arena::try_footprint() const {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return std::nullopt;
  return measure();
}

/// REQUIRES: mutex_.
Footprint Arena::measure() const {
  Footprint footprint{.shared = parked_ ? 0 : pages_end(),
                      .limit = limit_,
                      .windows = views_.size(),
                      .parked = parked_,
                      .aliases = has_aliases_};
  for (const View* view : views_) {
    footprint.mapped += view->end;
    footprint.own += view->own_bytes();
  }
  if (!has_aliases_) footprint.mapped = pages_end();
  return footprint;
}

Window::Window(std::shared_ptr<Arena> arena, std::unique_ptr<Arena::View> view) noexcept
    : arena_(std::move(arena)), view_(std::move(view)) {}

Window::Window() noexcept = default;
Window::Window(Window&&) noexcept = default;

Window& Window::operator=(Window&& other) noexcept {
  close();
  arena_ = std::move(other.arena_);
  view_ = std::move(other.view_);
  return *this;
}

Window::~Window() { close(); }

void Window::close() noexcept {
  if (view_) arena_->close(*view_);
  view_.reset();
  arena_.reset();
}

std::byte* Window::base() const noexcept { return view_ ? view_->addresses->base() : nullptr; }

std::size_t Window::size() const noexcept { return view_ ? view_->bytes : 0; }

Device Window::device() const noexcept { return arena_ ? arena_->device() : kCpu; }

std::size_t Window::own_bytes() const {
  if (!view_) return 0;
  const std::lock_guard lock(arena_->mutex_);
  return view_->own_bytes();
}

void Window::grow(std::size_t bytes) {
  const std::lock_guard lock(arena_->mutex_);
  arena_->grow(*view_, bytes);
}

void Window::retire() noexcept { arena_->retire(*view_); }

void Window::make_own(std::span<const Extent> extents) {
  const std::lock_guard lock(arena_->mutex_);
  arena_->own(*view_, extents);
}

}  // namespace onecopy::graph
