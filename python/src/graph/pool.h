// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>

#include "onecopy/graph/arena.h"
#include "onecopy/memory/dlpack.h"
#include "os/mutex.h"

namespace onecopy::python {

/// Memory of one capture for torch's allocator: segments one behind the other in a window of an arena.
///
/// torch gives segments back on any thread, sometimes long after the graph has gone, and its addresses must be good
/// until then. So the window ends with the last segment, or with the pool's owner in Python, whichever is later.
///
/// Thread safety: all members may be called concurrently. Invariant: segments never overlap.
class GraphPool : public std::enable_shared_from_this<GraphPool> {  // shared: torch's segments keep it
 public:
  /// Throws as Arena::open_growing().
  static std::shared_ptr<GraphPool> make(graph::Arena& arena, std::size_t most);

  /// From now on torch's segments on this device are of this pool. One pool of a device at a time is open: if another
  /// is, throws invalid_argument.
  void open();
  /// Has no effect on a pool that is not open.
  void close() noexcept;
  /// Gives live ranges, by address and bytes, memory of the window's own. Throws as Window::make_own().
  void keep_alive(std::span<const graph::Extent> alive);

  /// Bytes of the window for torch, which keep the pool.
  DLManagedTensorVersioned* bytes_at(std::uintptr_t address, std::size_t bytes);

  /// Gives up the shared pages; the rest stays until torch has given all segments back.
  void retire() noexcept { window_.retire(); }

  std::uintptr_t base() const noexcept { return reinterpret_cast<std::uintptr_t>(window_.base()); }
  std::size_t used() const;
  std::size_t own_bytes() const { return window_.own_bytes(); }
  /// Segments that torch has.
  std::size_t segments() const;
  Device device() const noexcept { return device_; }
  /// Returns why the window last refused to grow, or an empty text. torch itself only says "out of memory".
  std::string refusal() const;

  /// Called by torch. Null if there is no room, which is logged.
  static void* allocate(std::size_t bytes, int ordinal) noexcept;
  static void free(void* segment) noexcept;

 private:
  GraphPool(graph::Window window, Device device) : window_(std::move(window)), device_(device) {}
  void* add(std::size_t bytes);
  bool remove(std::uintptr_t segment);

  graph::Window window_;
  const Device device_;
  mutable Mutex mutex_;
  std::size_t used_ GUARDED_BY(mutex_) = 0;
  std::string refusal_ GUARDED_BY(mutex_);
  std::multiset<std::uintptr_t> segments_ GUARDED_BY(mutex_);  ///< that torch has
  std::shared_ptr<GraphPool> self_ GUARDED_BY(mutex_);         ///< while there are segments
};

}  // namespace onecopy::python
