// SPDX-License-Identifier: Apache-2.0
// The windows of an arena, and what they take.
#include <mutex>
#include <utility>

#include "core/moved_from.h"
#include "graph/page.h"
#include "graph/view.h"
#include "onecopy/graph/arena.h"

namespace onecopy::graph {

Footprint Arena::footprint() const {
  const std::lock_guard lock(mutex_);
  return measure();
}

std::optional<Footprint> Arena::try_footprint() const {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return std::nullopt;
  return measure();
}

std::size_t Arena::mappings_of(const View& view) const {
  std::size_t sum = 0;
  for (const Page& page : pages_)
    if (view.shows(page)) sum += view.shows_whole(page) ? 1 : page.bytes() / part_bytes_;
  return sum;
}

/// Returns the sizes. REQUIRES: mutex_.
Footprint Arena::measure() const {
  Footprint footprint{
      .limit = limit_, .windows = views_.size(), .parked = parked_, .aliases = has_aliases_};
  for (const Page& page : pages_) footprint.shared += page.memory();
  for (const View* view : views_) {
    footprint.mapped += view->end;
    footprint.mappings += mappings_of(*view);
    footprint.own += view->own_bytes();
  }
  if (!has_aliases_) footprint.mapped = pages_end(), footprint.mappings = pages_.size();
  return footprint;
}

Window::Window(std::shared_ptr<Arena> arena, std::unique_ptr<Arena::View> view) noexcept
    : arena_(std::move(arena)), view_(std::move(view)) {}

Window::Window() noexcept = default;
Window::Window(Window&&) noexcept = default;

Window& Window::operator=(Window&& other) noexcept {
  Window moved(std::move(other));  // first, because `other` may be this window
  std::swap(arena_, moved.arena_);
  std::swap(view_, moved.view_);
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
  Arena& arena = of_object(arena_, "Window");
  const std::lock_guard lock(arena.mutex_);
  arena.grow(*view_, bytes);
}

void Window::retire() noexcept {
  if (view_) arena_->retire(*view_);
}

void Window::make_own(std::span<const Extent> extents) {
  Arena& arena = of_object(arena_, "Window");
  const std::lock_guard lock(arena.mutex_);
  arena.own(*view_, extents);
}

}  // namespace onecopy::graph
