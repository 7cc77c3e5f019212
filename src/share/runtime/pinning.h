// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "device/backend.h"
#include "onecopy/memory/tensor.h"
#include "os/event_loop.h"
#include "os/mutex.h"
#include "os/worker.h"
#include "share/owner/pools.h"
#include "share/owner/shared_blocks.h"
#include "share/runtime/stream_order.h"

namespace onecopy {

/// The pieces of segments, of this and other processes, that this process has pinned for its cards. A piece is kPinUnit
/// bytes of a segment that is cut into blocks, or all of a segment that is a single block.
///
/// A piece stays pinned when its blocks are freed, since later blocks will be in it, too. A piece is unpinned by
/// unpin() or trim(), to make room below the limit, or when nothing else has its segment mapped, but never while this
/// process has a block in the piece other than the one that unpin() names, see PinnedRanges. A pinned piece keeps its
/// segment mapped: memory that a driver has pinned is never unmapped, nor mapped over.
///
/// Thread safety: all members may be called concurrently, but for abandon(). Unpinning waits for the device, so it is
/// done by unpin(), trim(), callers that need room, and otherwise by end_left(), on a thread for which no other waits.
class Pinning {
 public:
  /// Makes an object without pins. Tells `streams` of each card for which pages are pinned, since copies from the card
  /// may fill them, and `pools` when pages of this process may be given back to the system again.
  Pinning(EventLoop& loop, StreamOrder& streams, Pools& pools);

  /// Pins all pages of the tensor's block. Returns quickly if they are already pinned. Throws unsupported with the
  /// missing feature; invalid_argument for memory of other libraries; out_of_memory with the numbers and the limit.
  /// `card`: the first card to use it, by default one that is in use here; every card of its kind can use the pages.
  void pin(const Tensor& tensor, std::optional<Device> card = {}) { pin(tensor, card, Use::copies); }
  /// Pins as pin() does, and keeps unpin() from having an effect while this process has the block.
  void pin_for_views(const Tensor& tensor, Device card) { pin(tensor, card, Use::views); }
  /// Ends the caller's use of the pages. Waits for the device. No thread may copy the tensor during the call. Has no
  /// effect if the pages are not pinned, if a card has views of them, or if they contain other blocks of this process,
  /// which other threads may be copying.
  void unpin(const Tensor& tensor);
  /// Returns whether one pinned range contains all of the tensor.
  static bool is_pinned(const Tensor& tensor);

  /// Ends references whose devices have done the work that they wait for.
  static void settle() noexcept;
  /// Unpins pieces that were left for later. Waits for the device.
  void end_left() noexcept;
  /// Unpins all pieces without a block of this process at once. Returns how many bytes.
  std::uint64_t end_idle();

  /// Stops the background threads. Waits for work that is under way.
  void stop(std::chrono::milliseconds patience) noexcept;

  /// Forgets all pieces in a forked child, which has pinned nothing.
  void abandon() noexcept NO_THREAD_SAFETY_ANALYSIS;
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }

  /// Pins pages that lie in no segment, for a card that this process uses. The caller calls PinnedRanges::unpin() before it
  /// unmaps them. Throws unsupported without a card, and out_of_memory beyond the limit.
  void pin_memory(std::byte* at, std::size_t bytes, Access access);

  /// Returns how many bytes a process may pin: ONECOPY_PIN_LIMIT, or else half of the memory that it may use.
  static std::uint64_t limit();

 private:
  struct Piece {
    SharedBlocks* group;
    /// Keeps the group alive; null for a group that is never destroyed.
    std::shared_ptr<const void> alive;
    std::shared_ptr<DeviceMemory> memory;  ///< shared with the holder that has mapped it
    std::uint32_t segment = 0;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::set<std::uint32_t> users{};   ///< blocks that were pinned by name
    std::set<std::uint32_t> viewed{};  ///< blocks that a card may use in place

    std::byte* at() const noexcept { return memory->data() + offset; }
  };
  /// A map of pieces by their address. A piece keeps its node until it is unpinned: nodes move between maps without an
  /// allocation, so that unpinning never fails for lack of memory.
  using Pieces = std::map<std::byte*, Piece>;

  enum class Use { copies, views };

  static Piece piece_of(const Tensor& tensor);
  void pin(const Tensor& tensor, std::optional<Device> card, Use use);
  bool try_use(const Piece& wanted, std::uint32_t block, Use use);
  void make(Piece piece, std::uint32_t block, Device card, Use use) REQUIRES(making_);
  static void note(Piece& piece, std::uint32_t block, Use use);
  void make_room(std::uint64_t bytes) REQUIRES(making_);
  Pieces take(const std::function<bool(const Piece&)>& is_chosen) noexcept;
  Pieces take_idle() noexcept;
  Pieces take_left() noexcept;
  /// Unpins pieces and returns how many bytes. `others`: blocks that no thread copies now.
  std::uint64_t end(Pieces pieces, const std::set<std::uint32_t>& others = {}) noexcept REQUIRES(making_);

  /// Finds pieces whose segment nothing else has mapped, and ends dropped references. Returns a short pause while a
  /// piece waits for a device.
  Timer::Pause poll() noexcept;
  void sweep() noexcept;

  StreamOrder& streams_;
  Pools& pools_;
  Mutex making_;  ///< before mutex_; held while a piece is pinned or unpinned
  mutable Mutex mutex_;
  Pieces pieces_ GUARDED_BY(mutex_);
  Pieces left_ GUARDED_BY(mutex_);  ///< pieces that end_left() has to unpin
  /// A thread of its own, because unpinning waits for the device's work.
  Worker unpinning_{"onecopy-unpin", [this] { end_left(); }};
  /// A thread of its own, because a driver may wait for room.
  Worker settling_{"onecopy-late", [] { settle(); }};
  std::atomic<bool> has_segment_ended_{false};
  Timer looks_;
};

}  // namespace onecopy
