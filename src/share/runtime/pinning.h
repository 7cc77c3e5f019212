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
#include <utility>
#include <vector>

#include "device/backend.h"
#include "onecopy/memory/tensor.h"
#include "os/event_loop.h"
#include "os/mutex.h"
#include "os/worker.h"
#include "share/owner/pools.h"
#include "share/owner/shared_blocks.h"
#include "share/runtime/stream_order.h"

namespace onecopy {

/// The pieces of segments, our own and others', that this process has pinned for its cards. A piece is kPinUnit bytes
/// of a segment that is cut into blocks, or all of a segment that is a single block.
///
/// A piece stays pinned when its blocks go, since the next ones lie there, too. A piece ends with unpin() or trim(),
/// when room is needed below the limit, or when nothing else has its segment mapped; but never while this process has
/// another block in the piece, see PinnedRanges. A pinned piece keeps its segment mapped: memory that a driver has
/// pinned is never unmapped, nor mapped over.
///
/// Thread safety: all members may be called concurrently, but for abandon(). Unpinning waits for the device.
/// Therefore it is done by unpin() and trim(), by a caller that needs room, and else by end_left(), on a thread that no
/// other waits for.
class Pinning {
 public:
  /// `streams` hears of each card that pages are pinned for, since copies from it may fill them; `pools`, that pages of
  /// our own may go back to the system again.
  Pinning(EventLoop& loop, StreamOrder& streams, Pools& pools);

  /// Pins all pages that the tensor's block lies in. Quick if they are pinned already. Throws unsupported with the
  /// missing feature; invalid_argument for memory of other libraries; out_of_memory with the numbers and the limit.
  /// `card`: the first card to use it, by default one that is in use here; every card of its kind can use the pages.
  void pin(const Tensor& tensor, std::optional<Device> card = {}) { pin(tensor, card, Use::copies); }
  /// Pins as pin() does, and unpin() has no effect as long as this process has the block.
  void pin_for_views(const Tensor& tensor, Device card) { pin(tensor, card, Use::views); }
  /// Ends the caller's use of the pages. The caller must let no thread copy the tensor during the call, and waits for
  /// the device. Has no effect if they are not pinned, if a card has views of them, or if other blocks of this process
  /// lie beside the tensor, which other threads may be copying.
  void unpin(const Tensor& tensor);
  /// Returns whether one pinned range holds all of the tensor.
  static bool is_pinned(const Tensor& tensor);

  /// Ends references that no longer need to wait, as far as the devices have come.
  static void settle() noexcept;
  /// Unpins pieces that were left for later. Waits for the device.
  void end_left() noexcept;
  /// Unpins at once all pieces without a block of this process. Returns how many bytes.
  std::uint64_t end_idle();

  /// Ends all work in the background; waits for work that is under way.
  void stop(std::chrono::milliseconds patience) noexcept;

  /// Forgets all in a forked child, which has pinned nothing.
  void abandon() noexcept NO_THREAD_SAFETY_ANALYSIS;
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }

  /// Returns how many bytes a process may pin: ONECOPY_PIN_LIMIT, or else half of the memory that it may use.
  static std::uint64_t limit();

 private:
  struct Piece {
    SharedBlocks* group;
    std::shared_ptr<const void> alive;     ///< keeps the group alive, if it would end otherwise
    std::shared_ptr<DeviceMemory> memory;  ///< shared with the holder that has mapped it
    std::uint32_t segment = 0;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::set<std::uint32_t> users{};   ///< blocks that were pinned by name
    std::set<std::uint32_t> viewed{};  ///< blocks that a card may use in place

    std::byte* at() const noexcept { return memory->data() + offset; }
  };
  /// A map of pieces by their begin. A piece keeps its node from the pin to the end of it: nodes move between maps without an
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
  /// `others`: blocks that no thread copies now.
  std::uint64_t end(Pieces pieces, const std::set<std::uint32_t>& others = {}) noexcept REQUIRES(making_);

  /// Looks after dropped pieces, and for pieces that nothing else has mapped; again soon while a piece waits for a
  /// device.
  Timer::Pause look() noexcept;
  void sweep() noexcept;

  StreamOrder& streams_;
  Pools& pools_;
  Mutex making_;  ///< before mutex_; held while a piece is pinned or unpinned
  mutable Mutex mutex_;
  Pieces pieces_ GUARDED_BY(mutex_);
  Pieces left_ GUARDED_BY(mutex_);  ///< to be unpinned by end_left()
  /// A thread of its own: a device may have much to do.
  Worker unpinning_{"onecopy-unpin", [this] { end_left(); }};
  /// A thread of its own: a driver may have no room.
  Worker settling_{"onecopy-late", [] { settle(); }};
  std::atomic<bool> has_segment_ended_{false};
  Timer looks_;
};

}  // namespace onecopy
