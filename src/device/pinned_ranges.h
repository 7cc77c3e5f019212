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

/// Segments are pinned in pieces of so many bytes, which begin at multiples of it. In segments that are cut into
/// blocks, no block reaches over such an edge. So a framework that knows nothing of edges copies each block as one.
inline constexpr std::uint64_t kPinUnit = std::uint64_t{64} << 20;

/// The host's memory that this process has pinned, by address. A forked child has pinned nothing: the mappings are
/// its own, and the pins stay its parent's.
///
/// A driver that unpins a range while another thread gives it a copy there ends all of the process's work on the card
/// (CUDA_ERROR_LAUNCH_FAILED, seen on an H100). Frameworks copy any block that this process has, also one whose
/// neighbour was pinned. So a range is unpinned only while no block lies in it: unpin_unused() looks once more after it
/// has said that it is about to, and a thread that gets a block looks for that with await_unpinning(). The later one sees
/// the earlier one.
///
/// Thread safety: all members may be called concurrently. pin(), unpin() and unpin_unused() wait for each other and for
/// the driver; beside them only await_unpinning() waits. one_copy() takes a lock for a look-up. Invariants: ranges never
/// overlap. A
/// range is known before the driver pins it and until it has unpinned it, so that no copy that begins meanwhile
/// reaches over its edges.
class PinnedRanges {
  using Address = std::uintptr_t;

 public:
  static PinnedRanges& get();

  /// Pins whole pages for all devices of the kind of `device`; unpin them before they are unmapped. Takes a
  /// millisecond for 16 MiB of present pages, more for missing ones. Throws as Backend::pin_host() does, and
  /// invalid_argument for an empty range, parts of pages, and pages that are pinned already.
  void pin(Device device, void* at, std::size_t bytes, Access access);
  /// Unpins the range that begins at `at`; has no effect if there is none. Waits for the device: never on a path that
  /// another thread waits for.
  void unpin(void* at) noexcept;
  /// unpin(), unless `is_used` says that a block lies there: then returns false, and nothing is changed.
  bool unpin_unused(void* at, const std::function<bool()>& is_used) noexcept;
  /// Is a range being unpinned that reaches into [at, at + bytes)? A thread that has got a block there asks before it
  /// hands out the address. Costs one load while nothing is pinned.
  static bool is_unpinning(const void* at, std::size_t bytes) noexcept {
    if (!any()) return false;
    std::atomic_thread_fence(std::memory_order_seq_cst);  // behind the hold of the block
    const Address begin = leaving_begin_.load();
    if (begin == 0) return false;
    const auto block = reinterpret_cast<Address>(at);
    return block < leaving_end_.load() && begin < block + bytes;
  }
  /// Waits while is_unpinning().
  static void await_unpinning(const void* at, std::size_t bytes) noexcept {
    if (is_unpinning(at, bytes)) get().wait_for_changes();
  }

  /// Is anything pinned here now? Costs one load.
  static bool any() noexcept { return any_.load(std::memory_order_relaxed); }
  /// Is memory of `device` that begins at `at` in truth the host's, which the card has in place? Costs one load while
  /// nothing is pinned.
  static bool is_view(Device device, const void* at) noexcept {
    return device != kCpu && any() && get().touches(at, 1);
  }
  /// May a copy from a card still be filling memory of `device` that begins at `at`? Costs one load while nothing is
  /// pinned.
  static bool may_be_filled(Device device, const void* at, std::size_t bytes) noexcept {
    return device == kCpu && any() && get().touches(at, bytes);
  }
  /// Has `action` called when a segment has ended that pinned pieces may keep mapped. REQUIRES: nothing is pinned yet.
  static void on_segment_end(std::function<void()> action) { on_segment_end_ = std::move(action); }
  static void segment_ended() {
    if (any() && on_segment_end_) on_segment_end_();
  }
  /// Is some of [at, at + bytes) pinned?
  bool touches(const void* at, std::size_t bytes) const noexcept;
  /// Does one pinned range hold all of [at, at + bytes)?
  bool is_pinned(const void* at, std::size_t bytes) const noexcept;
  /// How many of `bytes` from `at` on one copy may take: to the next edge of a range. At least one if `bytes` is
  /// positive.
  std::size_t one_copy(const void* at, std::size_t bytes) const noexcept;
  /// Bytes pinned now.
  std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  struct Range {
    std::size_t bytes;
    Device device;
    bool is_pinned = false;  ///< the driver has done it
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
  inline static std::atomic<Address> leaving_begin_{
      0};  ///< of the range that is being unpinned; 0: of none
  inline static std::atomic<Address> leaving_end_{0};
  inline static std::function<void()> on_segment_end_;

  Mutex changes_;  ///< held for the driver's calls
  mutable SharedMutex mutex_ ACQUIRED_AFTER(changes_);
  Ranges ranges_ GUARDED_BY(mutex_);
  std::atomic<std::uint64_t> bytes_{0};
};

}  // namespace onecopy
