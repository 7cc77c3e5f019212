// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "onecopy/core/device.h"
#include "onecopy/core/tensor_view.h"
#include "os/fork_hook.h"
#include "os/mutex.h"

namespace onecopy {

/// The unit, in bytes, in which segments are pinned; pieces begin at multiples of it. No block of a segment crosses
/// such an edge, so a framework that does not know of edges can copy each block in one call.
inline constexpr std::uint64_t kPinUnit = std::uint64_t{64} << 20;

/// The host memory that this process has pinned, by address. A forked child has pinned nothing: the mappings are its
/// own, and the pins belong to its parent.
///
/// If a driver unpins a range while another thread starts a copy there, all of the process's work on the card fails
/// (CUDA_ERROR_LAUNCH_FAILED, seen on an H100). Frameworks copy any block that this process holds, including one whose
/// neighbour was pinned. A range is therefore unpinned only while it contains no block: unpin_unused() announces the
/// range and then checks for blocks, and a thread that gets a block then checks for the announcement with
/// await_unpinning(). Whichever comes second sees the first.
///
/// Thread safety: all members may be called concurrently. pin(), unpin() and unpin_unused() wait for each other and for
/// the driver; among the others only await_unpinning() waits. one_copy() takes a lock for a look-up. Invariants: ranges
/// never overlap. A range is known before the driver pins it and until the driver has unpinned it, so that no
/// concurrent copy crosses its edges.
class PinnedRanges {
  using Address = std::uintptr_t;

 public:
  static PinnedRanges& get();

  /// Pins whole pages for all devices of the type of `device`; unpin them before they are unmapped. Takes a millisecond
  /// for 16 MiB of present pages, more for absent ones. Throws what Backend::pin_host() throws, and invalid_argument
  /// for an empty range, parts of pages, and pages that are pinned already.
  void pin(Device device, void* at, std::size_t bytes, Access access);
  /// Unpins the range that begins at `at`, if there is one. Waits for the device, so it must not be called where
  /// another thread waits.
  void unpin(void* at) noexcept;
  /// Unpins the range and returns true, or returns false with nothing changed if `is_used` reports a block there.
  bool unpin_unused(void* at, const std::function<bool()>& is_used) noexcept;
  /// Returns whether a range that overlaps [at, at + bytes) is being unpinned. A thread that gets a block checks this
  /// before it hands out the address. Costs one load while nothing is pinned.
  static bool is_unpinning(const void* at, std::size_t bytes) noexcept {
    if (!any()) return false;
    std::atomic_thread_fence(std::memory_order_seq_cst);  // after this process holds the block
    const Address begin = leaving_begin_.load();
    if (begin == 0) return false;
    const auto block = reinterpret_cast<Address>(at);
    return block < leaving_end_.load() && begin < block + bytes;
  }
  /// Waits until is_unpinning() is false.
  static void await_unpinning(const void* at, std::size_t bytes) noexcept {
    if (is_unpinning(at, bytes)) get().wait_for_changes();
  }

  /// Returns whether anything is pinned here now. Costs one load.
  static bool any() noexcept { return any_.load(std::memory_order_relaxed); }
  /// Returns whether memory of `device` that begins at `at` is really host memory, which the card uses in place. Costs
  /// one load while nothing is pinned.
  static bool is_view(Device device, const void* at) noexcept {
    return device != kCpu && any() && get().touches(at, 1);
  }
  /// Returns whether a copy from a card may still be filling memory of `device` that begins at `at`. Costs one load
  /// while nothing is pinned.
  static bool may_be_filled(Device device, const void* at, std::size_t bytes) noexcept {
    return device == kCpu && any() && get().touches(at, bytes);
  }
  /// Sets a callback for the end of a segment that pinned pieces may keep mapped. REQUIRES: nothing is pinned yet.
  static void on_segment_end(std::function<void()> action) { on_segment_end_ = std::move(action); }
  static void segment_ended() {
    if (any() && on_segment_end_) on_segment_end_();
  }
  /// Returns whether some of [at, at + bytes) is pinned.
  bool touches(const void* at, std::size_t bytes) const noexcept;
  /// Returns whether one pinned range contains all of [at, at + bytes).
  bool is_pinned(const void* at, std::size_t bytes) const noexcept;
  /// Returns how many of `bytes` from `at` on one copy may take: up to the next edge of a range. Returns at least one
  /// if `bytes` is positive.
  std::size_t one_copy(const void* at, std::size_t bytes) const noexcept;
  /// Returns the bytes pinned now.
  std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  struct Range {
    std::size_t bytes;
    Device device;
    bool is_pinned = false;  ///< set once the driver has pinned it
  };
  using Ranges = std::map<Address, Range>;

  void wait_for_changes() noexcept { const LockGuard wait(changes_); }
  void announce(void* at) noexcept REQUIRES(changes_);
  void unpin_now(void* at) noexcept REQUIRES(changes_);
  void add(Address at, const Range& range) EXCLUDES(mutex_);
  void remove(Address at) noexcept EXCLUDES(mutex_);
  Ranges::const_iterator find(Address at) const noexcept REQUIRES_SHARED(mutex_);

  static const ForkHook kForkHook;
  inline static std::atomic<bool> any_{false};
  /// The beginning of the range that is being unpinned; 0 if there is none.
  inline static std::atomic<Address> leaving_begin_{0};
  inline static std::atomic<Address> leaving_end_{0};
  inline static std::function<void()> on_segment_end_;

  Mutex changes_;  ///< held for the driver's calls
  mutable SharedMutex mutex_ ACQUIRED_AFTER(changes_);
  Ranges ranges_ GUARDED_BY(mutex_);
  std::atomic<std::uint64_t> bytes_{0};
};

}  // namespace onecopy
