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

/// The memory of one capture for torch's allocator: consecutive segments in a window of an arena.
///
/// torch frees segments on any thread, sometimes long after the graph was destroyed, and its addresses must be valid
/// until then. So the window lives until the last segment is freed and the pool's owner in Python has released it.
///
/// Thread safety: all members may be called concurrently. Invariant: segments never overlap.
class GraphPool : public std::enable_shared_from_this<GraphPool> {  // shared: torch's segments keep it
 public:
  /// Throws as Arena::open_growing().
  static std::shared_ptr<GraphPool> make(graph::Arena& arena, std::size_t most);

  /// Serves torch's segments on this device from this pool until close(). Throws invalid_argument if another pool of
  /// the device is open.
  void open();
  /// Closes the pool. Has no effect if it is not open.
  void close() noexcept;
  /// Moves live ranges (addresses and sizes in bytes) to memory that no other window maps. Throws as
  /// Window::make_own().
  void keep_alive(std::span<const graph::Extent> alive) { window_.make_own(alive); }

  /// Returns bytes of the window as a DLPack tensor, which keeps the pool alive.
  DLManagedTensorVersioned* bytes_at(std::uintptr_t address, std::size_t bytes);

  /// Releases the shared pages. The addresses stay until torch has freed all segments.
  void retire() noexcept { window_.retire(); }

  std::uintptr_t base() const noexcept { return reinterpret_cast<std::uintptr_t>(window_.base()); }
  std::size_t used() const;
  std::size_t own_bytes() const { return window_.own_bytes(); }
  Device device() const noexcept { return device_; }
  /// Returns why the window last refused to grow, or an empty text. torch itself only says "out of memory".
  std::string refusal() const;

  /// Allocates a segment for torch. Returns null, and logs why, if there is no memory.
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
