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

/// The time that an allocation of a large block waits for a stream to pass the drop of another block. Tests raise it.
inline std::atomic<int> idle_stream_us{100};

/// Leases that end only once a stream has done all work that was in it when the last reference went. So memory that
/// the stream still reads or writes is not reused before. No thread waits for that. A failed device may still do
/// anything: a lease that waits for its streams ends with the process.
///
/// Thread safety: all members may be called concurrently.
class StreamReleases {
 public:
  explicit StreamReleases(Timeline& timeline) : timeline_(timeline) {}

  /// Runs (without locks) when a lease is waiting. The caller must then call sweep() until it returns false.
  std::function<void()> on_wait;
  /// Runs (without locks) when a drop is not marked. The caller must then call mark_left().
  std::function<void()> on_left;
  /// Returns whether this thread may not wait for room in a stream, as every mark may. The stream's drops are left for
  /// mark_left().
  std::function<bool()> must_not_wait;

  /// Wraps the block: dropping the result is ordered in the stream. REQUIRES: the stream lives as long.
  BlockRef order(BlockRef block, Device device, Stream stream);
  /// Marks the ends of drops that are not marked yet: drops in default streams, drops while a stream was captured, and
  /// drops by threads that may not wait. May wait for room in a stream.
  void mark_left() noexcept;
  /// Ends leases that have become due. Returns true while one is waiting. Waits for nothing.
  bool sweep() noexcept;
  /// Returns how many wait. Leases that a failed device keeps are not counted.
  std::size_t size() const noexcept { return size_; }

 private:
  class Lease;
  struct DroppedReference {
    BlockRef block;
    Device device;
    Stream stream;
    TimelinePoint point{};  ///< the release is due once the stream has passed it; set by the mark
  };
  /// A list whose elements are made with the leases. From then on they move from list to list, which needs no memory: a
  /// drop must not fail.
  using References = std::list<DroppedReference>;

  void drop(References dropped) noexcept;
  void collect(References dropped) noexcept;
  void leave(References dropped) noexcept;
  void mark_collected() noexcept;
  void end_two() noexcept;
  /// Makes one mark for all that were dropped in one stream. Asks the driver without the lock.
  void mark_all(References dropped) noexcept;
  std::optional<TimelinePoint> mark(Device device, Stream stream) noexcept;
  template <class IsChosen>
  void take(References& from, References& to, IsChosen&& is_chosen) REQUIRES(mutex_);
  void hold_those_of_failed_devices() REQUIRES(mutex_);

  Timeline& timeline_;
  std::atomic<std::size_t> size_{0};  ///< also counts leases that are just being marked
  Mutex mutex_;
  References collected_ GUARDED_BY(mutex_);  ///< in default streams, and not marked yet
  std::size_t collected_bytes_ GUARDED_BY(mutex_) = 0;
  References waiting_ GUARDED_BY(mutex_);  ///< marked, and not due yet
  References unmarked_
      GUARDED_BY(mutex_);               ///< a captured stream takes no mark, and some threads may make none
  References held_ GUARDED_BY(mutex_);  ///< until the process ends
};

}  // namespace onecopy
