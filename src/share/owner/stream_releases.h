// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <optional>

#include "device/order/timeline.h"
#include "os/mutex.h"
#include "share/owner/shared_blocks.h"

namespace onecopy {

/// The time that the allocation of a large block waits until a stream has passed the drop of another block. Tests raise
/// it.
inline std::atomic<int> idle_stream_us{100};

/// The leases that end only once a stream has done all work that was in it when the last reference was dropped, so that
/// memory is not reused while the stream reads or writes it. No thread waits for the stream. A failed device may still
/// access memory, so a lease that waits for its streams ends with the process.
///
/// Thread safety: all members may be called concurrently.
class StreamReleases {
 public:
  explicit StreamReleases(Timeline& timeline) : timeline_(timeline) {}

  /// Runs, without locks, when a lease begins to wait. The owner of this object must then call sweep() until it returns
  /// false.
  std::function<void()> on_wait;
  /// Runs, without locks, when a drop could not be marked. The owner of this object must then call mark_left().
  std::function<void()> on_left;
  /// Returns whether this thread must not wait for room in a stream, which a mark may do. Its drops are then left to
  /// mark_left().
  std::function<bool()> must_not_wait;

  /// Wraps the block, so that dropping the result releases the block in the stream's order. REQUIRES: the stream
  /// outlives the result.
  BlockRef order(BlockRef block, Device device, Stream stream);
  /// Marks all drops that are not marked yet: drops in default streams, drops while a stream was being captured, and
  /// drops by threads that must not wait. May wait for room in a stream.
  void mark_left() noexcept;
  /// Ends leases that have become due. Returns true while one is waiting. Waits for nothing.
  bool sweep() noexcept;
  /// Returns how many leases wait. Leases that a failed device keeps are not counted.
  std::size_t size() const noexcept { return size_; }

 private:
  class Lease;
  struct DroppedReference {
    BlockRef block;
    Device device;
    Stream stream;
    TimelinePoint point{};  ///< the release is due once the stream has passed it; set by the mark
  };
  /// A list whose elements are made together with the leases. The elements move from list to list without an
  /// allocation, so that a drop cannot fail.
  using References = std::list<DroppedReference>;

  void drop(References dropped) noexcept;
  void collect(References dropped) noexcept;
  void leave(References dropped) noexcept;
  void mark_collected() noexcept;
  void end_two() noexcept;
  /// Makes one mark for all references that were dropped in one stream. Calls the driver without the lock.
  void mark_all(References dropped) noexcept;
  std::optional<TimelinePoint> mark(Device device, Stream stream) noexcept;
  template <class IsChosen>
  void take(References& from, References& to, IsChosen&& is_chosen) REQUIRES(mutex_);
  void hold_those_of_failed_devices() REQUIRES(mutex_);

  Timeline& timeline_;
  std::atomic<std::size_t> size_{0};  ///< includes leases that are being marked
  Mutex mutex_;
  References collected_ GUARDED_BY(mutex_);  ///< dropped in default streams and not marked yet
  std::size_t collected_bytes_ GUARDED_BY(mutex_) = 0;
  References waiting_ GUARDED_BY(mutex_);  ///< marked, and not due yet
  References unmarked_
      /// References that could not be marked, because the stream was being captured or the thread must not wait.
      GUARDED_BY(mutex_);
  References held_ GUARDED_BY(mutex_);  ///< until the process ends
};

}  // namespace onecopy
