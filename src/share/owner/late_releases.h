// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "device/work_point.h"
#include "onecopy/core/device.h"
#include "os/mutex.h"
#include "share/owner/shared_blocks.h"

namespace onecopy {

/// References to blocks in pinned memory that this process has dropped while its devices may still read or write them.
/// A copy from pinned memory returns at once. So after `x.to("cuda", non_blocking=True); del x` the owner could reuse
/// the bytes before the card has read them. A kept reference ends once all work is done that the devices had when it
/// was dropped. The references of a list share one point in the work; keep() or release_due() closes a list.
///
/// While a stream is being captured, no point is made and lists wait (CaptureGate). If the vendor has no points, a
/// thread waits for the devices instead. A failed device may still access memory, so references to its memory end with
/// the process.
///
/// Thread safety: all members may be called concurrently, except the members about fork. No lock is held while a group
/// is called; checking a point is the only call of a driver with the lock held. Never destroyed.
class LateReleases {
 public:
  /// Returns null if this process has pinned nothing, so that references may end at once. Costs one load.
  static LateReleases* active() noexcept { return active_.load(std::memory_order_acquire); }
  /// Starts keeping references. A forked child, which has pinned nothing, has to call it again.
  static LateReleases& activate(DeviceType type);

  /// The functions of the layer above, which are called without locks.
  struct Hooks {
    /// Tells that a reference is kept: release_due() must be called until it returns false.
    std::function<void()> on_wait;
    /// Tells that a thread that may wait has to call settle().
    std::function<void()> on_work;
    /// Returns whether this thread may not wait for a driver, and so must not close a list.
    std::function<bool()> must_not_wait;
  };
  /// Sets the hooks. REQUIRES: no reference has been kept yet.
  static void set_hooks(Hooks hooks) { hooks_ = std::move(hooks); }

  /// Keeps the reference, and ends it later by release_now(). Returns false if the block is not pinned, in which case
  /// the caller still has the reference.
  bool keep(SharedBlocks& group, std::uint32_t block, std::span<const std::byte> bytes) noexcept;
  /// Ends references that have become due. Returns true while some are kept. Waits for nothing.
  bool release_due() noexcept;
  /// Closes the open list. If the vendor has no points, waits for the device. REQUIRES: the thread may wait for the
  /// driver.
  void settle() noexcept;
  /// Returns how many references have ever been kept.
  std::uint64_t total() const noexcept { return total_; }
  std::size_t size() const noexcept { return size_; }

  // The fork handlers call the following members.
  static void lock() noexcept NO_THREAD_SAFETY_ANALYSIS;
  static void unlock() noexcept NO_THREAD_SAFETY_ANALYSIS;
  /// Ends all kept references in a forked child, which does not use its parent's devices. REQUIRES: the child has
  /// claims of its own.
  static void end_in_child() noexcept NO_THREAD_SAFETY_ANALYSIS;

 private:
  using Clock = std::chrono::steady_clock;
  struct KeptReference {
    SharedBlocks* group;
    std::uint32_t block;
  };
  /// A linked list, so that references move from one list to another without an allocation, and dropping one never
  /// fails.
  using References = std::list<KeptReference>;
  struct List {
    References kept;
    std::vector<std::unique_ptr<WorkPoint>> points;
  };

  /// A set of kinds of devices.
  class Types {
   public:
    void add(DeviceType type) noexcept {
      if (std::find(begin(), end(), type) == end() && size_ < all_.size()) all_[size_++] = type;
    }
    const DeviceType* begin() const noexcept { return all_.data(); }
    const DeviceType* end() const noexcept { return all_.data() + size_; }

   private:
    std::array<DeviceType, 4> all_{};
    std::size_t size_ = 0;
  };

  bool close_list() noexcept;
  bool try_mark(List& list);
  void put_back(List list) noexcept;
  void end_due() noexcept;
  void end(References& kept) noexcept;
  void wait_for_devices() noexcept;
  Types all_types() const noexcept;

  static inline std::atomic<LateReleases*> active_{nullptr};
  static inline Hooks hooks_;

  mutable Mutex mutex_;
  Types types_ GUARDED_BY(mutex_);
  References open_ GUARDED_BY(mutex_);
  std::uint64_t open_bytes_ GUARDED_BY(mutex_) = 0;
  Clock::time_point last_close_ GUARDED_BY(mutex_){};
  std::deque<List> closed_ GUARDED_BY(mutex_);
  References held_ GUARDED_BY(mutex_);  ///< until the process ends
  std::atomic<bool> has_points_{true};  ///< false once a vendor has reported that it has no points
  std::atomic<std::uint64_t> total_{0};
  std::atomic<std::size_t> size_{0};  ///< without the held ones
};

}  // namespace onecopy
