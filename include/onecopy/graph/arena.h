// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "onecopy/core/device.h"

namespace onecopy {
class Reservation;
}  // namespace onecopy

namespace onecopy::graph {

class Page;
class Window;

/// Options of Arena::make().
struct ArenaOptions {
  std::size_t limit_bytes = SIZE_MAX;  ///< of physical memory
};

/// Bytes of a window.
struct Extent {
  std::size_t from = 0;
  std::size_t bytes = 0;
};

/// The size of an arena, in bytes.
struct Footprint {
  std::size_t shared = 0;  ///< physical memory that windows have in common
  std::size_t own = 0;     ///< physical memory that one window alone shows
  std::size_t mapped = 0;  ///< addresses of all windows together
  std::size_t limit = 0;   ///< for the pages of a window
  std::size_t windows = 0;
  std::size_t mappings = 0;  ///< pieces of memory that the driver shows in all windows, own ones among them
  bool parked = false;
  bool aliases = true;  ///< has each window addresses of its own?
};

/// The scratch memory of captured graphs. Each capture has a Window: addresses of its own over common physical pages,
/// from the first page on. So the arena is as large as its largest window, in any order of windows, and no two
/// captures have an address in common.
///
/// Where one memory cannot have several addresses, all windows have one address (Footprint::aliases is false).
/// REQUIRES, there: nothing of a capture is alive when the next one begins. A capture that leaves something alive is
/// made in an arena of its own.
///
/// Between replays the pages hold no data of value. REQUIRES: one replay at a time uses them.
///
/// A page is as large as what a window missed when it grew, up to 64 MiB and to four times all before it. A window
/// with memory of its own has it in parts of 2 MiB, and shows other parts around it, which all such windows share.
///
/// Thread safety: all members may be called concurrently. Invariant: the last page is one that a window shows. A
/// parked arena has no memory.
class Arena : public std::enable_shared_from_this<Arena> {  // shared by its windows and its maker
 public:
  static std::shared_ptr<Arena> make(Device device, const ArenaOptions& options = {});
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Addresses for at least so many bytes. Throws out_of_memory with the numbers, out_of_mappings, unsupported if the
  /// device does not tell addresses from memory, and invalid_argument while the arena is parked; nothing is changed
  /// then.
  Window open(std::size_t bytes);
  /// Addresses for a capture whose size is unknown until it ends: `most` bytes of them, without pages until
  /// Window::grow(). Throws out_of_mappings, and invalid_argument while the arena is parked.
  Window open_growing(std::size_t most);

  /// Gives the shared pages back to the system. Each window keeps its addresses and its own memory. REQUIRES: the
  /// addresses are not touched until resume().
  void park() noexcept;
  /// Gets pages for all windows, with any content. Throws out_of_memory: then the arena is still parked.
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
  std::shared_ptr<Reservation> common_;  ///< the addresses of all windows, without aliases; theirs, too
  std::size_t common_most_ = 0;          ///< bytes of pages that it has room for
  std::size_t shown_ = 0;                ///< bytes of it that show pages
  bool parked_ = false;
};

/// The addresses of one capture. Ends with the object. Move-only.
/// Thread safety: const members may be called concurrently.
class Window {
 public:
  Window() noexcept;
  Window(Window&&) noexcept;
  Window& operator=(Window&&) noexcept;
  ~Window();

  std::byte* base() const noexcept;
  /// The bytes that were requested, and grown to.
  std::size_t size() const noexcept;
  /// Of its own memory.
  std::size_t own_bytes() const;
  /// The CPU for a window that was moved from.
  Device device() const noexcept;

  /// Shows pages for at least so many bytes from the beginning. Throws out_of_memory and out_of_mappings with the
  /// numbers, invalid_argument while the arena is parked; nothing is changed then.
  void grow(std::size_t bytes);
  /// Gives each 2 MiB that the extents touch memory of the window's own, with any content, which no replay of another
  /// window can overwrite. Throws out_of_memory: then some pages are exchanged, and the window is of no use. Throws
  /// unsupported, with nothing changed, where all windows have one address.
  /// REQUIRES: the caller has waited for work that used the pages.
  void make_own(std::span<const Extent> extents);
  /// Shows no shared page any more; addresses and own memory stay until the window ends. REQUIRES: the caller has
  /// waited for work that used the pages.
  void retire() noexcept;

 private:
  friend class Arena;
  Window(std::shared_ptr<Arena> arena, std::unique_ptr<Arena::View> view) noexcept;
  void close() noexcept;

  std::shared_ptr<Arena> arena_;
  std::unique_ptr<Arena::View> view_;
};

}  // namespace onecopy::graph
