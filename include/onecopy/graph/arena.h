// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "onecopy/core/api.h"
#include "onecopy/core/device.h"

namespace onecopy {
class Reservation;
}  // namespace onecopy

namespace onecopy::graph {
class Page;
}  // namespace onecopy::graph

ONECOPY_API_BEGIN
namespace onecopy::graph {

class Window;

/// The options of Arena::make().
struct ArenaOptions {
  std::size_t limit_bytes = SIZE_MAX;  ///< the max physical memory of the arena
};

/// A range of bytes in a window.
struct Extent {
  std::size_t from = 0;
  std::size_t bytes = 0;
};

/// The size of an arena, in bytes.
struct Footprint {
  std::size_t shared = 0;  ///< physical memory that windows have in common
  std::size_t own = 0;     ///< physical memory that belongs to one window
  std::size_t mapped = 0;  ///< the addresses of all windows together
  std::size_t limit = 0;   ///< the max size of a window's pages
  std::size_t windows = 0;
  std::size_t mappings = 0;  ///< pieces of memory that the driver shows in all windows, own ones among them
  bool parked = false;
  bool aliases = true;  ///< whether each window has addresses of its own
};

/// The scratch memory of captured graphs. Each capture gets a Window: addresses of its own over physical pages that all
/// windows share, beginning with the first page. The arena is therefore as large as its largest window, in any order of
/// windows, and two captures never have an address in common.
///
/// Where the driver cannot map memory at several addresses, all windows have the same addresses (Footprint::aliases is
/// false). REQUIRES then: nothing of a capture is alive when the next one begins. A capture that leaves something alive
/// needs an arena of its own.
///
/// Nothing reads the pages between replays. REQUIRES: one replay at a time uses them.
///
/// A page covers the shortfall of the window that caused it, at most 64 MiB and at most four times the memory before
/// it. A window with memory of its own gets it in parts of 2 MiB; the parts around it stay shared with other windows.
///
/// Thread safety: all members may be called concurrently. Invariant: at least one window shows the last page. A parked
/// arena holds no memory.
class Arena : public std::enable_shared_from_this<Arena> {  // owned by its windows and its maker
 public:
  static std::shared_ptr<Arena> make(Device device, const ArenaOptions& options = {});
  ~Arena();
  Arena& operator=(Arena&&) = delete;

  /// Reserves addresses for at least `bytes` and maps pages there. Throws out_of_memory with the numbers,
  /// out_of_mappings, unsupported if the device cannot reserve addresses apart from memory, and invalid_argument while
  /// the arena is parked; nothing has changed then.
  Window open(std::size_t bytes);
  /// Reserves `max_bytes` of addresses for a capture whose size is unknown until it ends; Window::grow() maps the
  /// pages. Throws out_of_mappings, and invalid_argument while the arena is parked.
  Window open_growing(std::size_t max_bytes);

  /// Gives the shared pages back to the system. Each window keeps its addresses and its own memory. REQUIRES: nothing
  /// touches the addresses until resume().
  void park() noexcept;
  /// Allocates pages for all windows, with undefined content. Throws out_of_memory; the arena stays parked then.
  void resume();

  Footprint footprint() const;
  /// Returns footprint() without waiting, or an empty optional while another thread changes the arena.
  std::optional<Footprint> try_footprint() const;
  Device device() const noexcept { return device_; }

 private:
  friend class Window;
  struct View;

  Arena(Device device, const ArenaOptions& options);
  std::size_t end_of(std::size_t bytes) const noexcept;
  std::size_t pages_end() const noexcept;
  Footprint measure() const;
  std::size_t mappings_of(const View& view) const;
  void check_running() const;
  void check_room(std::size_t bytes) const;
  std::size_t addresses_for(std::size_t bytes) const noexcept;
  std::unique_ptr<View> reserve(std::size_t bytes);
  std::unique_ptr<View> look_at_common();
  void grow(View& view, std::size_t bytes);
  void add_pages(std::size_t end);
  void trim() noexcept;
  void drop_unseen(Page& page) noexcept;
  void choose_parts(View& view, std::size_t from);
  void show(View& view, std::size_t from);
  void show_page(View& view, Page& page);
  void hide(View& view, std::size_t from) noexcept;
  void hide_page(View& view, const Page& page) noexcept;
  void hide_all() noexcept;
  void own(View& view, std::span<const Extent> extents);
  void own_parts(View& view, Page& page, std::span<const Extent> extents);
  void retire(View& view) noexcept;
  void close(View& view) noexcept;

  const Device device_;
  const std::size_t limit_;
  const std::size_t part_bytes_;
  const bool has_aliases_;
  mutable std::mutex mutex_;
  std::vector<Page> pages_;
  std::set<View*> views_;
  std::shared_ptr<Reservation> common_;  ///< without aliases: the addresses that all windows share
  std::size_t common_max_ = 0;           ///< the bytes of pages for which common_ has room
  std::size_t shown_ = 0;                ///< the bytes of common_ that map pages
  bool parked_ = false;
};

/// The addresses of one capture. The destructor releases them. Move-only: grow() and make_own() of a Window that was
/// moved from throw closed, and its other members return null or 0. Thread safety: const members may be called
/// concurrently.
class Window {
 public:
  Window() noexcept;
  Window(Window&&) noexcept;
  Window& operator=(Window&&) noexcept;
  ~Window();

  std::byte* base() const noexcept;
  /// Returns the bytes requested, or grown to.
  std::size_t size() const noexcept;
  /// Returns the bytes of memory that belong to this window alone.
  std::size_t own_bytes() const;
  /// Returns the device of the arena; the CPU for a window that was moved from.
  Device device() const noexcept;

  /// Maps pages for at least the first `bytes`. Throws out_of_memory and out_of_mappings with the numbers,
  /// invalid_argument while the arena is parked; nothing has changed then.
  void grow(std::size_t bytes);
  /// Replaces each 2 MiB part that an extent touches by memory of this window alone, with undefined content, which
  /// replays of other windows cannot overwrite. Throws out_of_memory, after which some parts may be replaced and the
  /// window must not be used. Throws unsupported, with nothing changed, where all windows have the same addresses.
  /// REQUIRES: the caller has waited for work that used the pages.
  void make_own(std::span<const Extent> extents);
  /// Unmaps all shared pages; addresses and own memory stay until the window ends. REQUIRES: the caller has waited for
  /// work that used the pages.
  void retire() noexcept;

 private:
  friend class Arena;
  Window(std::shared_ptr<Arena> arena, std::unique_ptr<Arena::View> view) noexcept;
  void close() noexcept;

  std::shared_ptr<Arena> arena_;
  std::unique_ptr<Arena::View> view_;
};

}  // namespace onecopy::graph
ONECOPY_API_END
