// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "channel/ring/ring.h"
#include "onecopy/core/tensor_view.h"
#include "share/session.h"

namespace onecopy {

/// The segments of the tensors in a queue's items, and the creator's description of the queue. Items name a segment by
/// its index in this directory, which is part of the ring's extra bytes.
///
/// The directory has two halves of kHalf entries. Entries are appended to one half. When it is full, the other half
/// begins anew, once all items have been taken that were put before that half was left. Each beginning is a new epoch.
///
/// Thread safety: all members may be called concurrently, append() inside Ring::exclusively(). Invariants:
///  - An item's rows name entries of the epoch in which it is put, which the putter checks under the producers' lock.
///  - So the entries that the item at the head names do not change until that item is taken.
///  - An entry or an epoch exists from one store on, so the death of an appender needs no repair.
class SegmentDirectory {
 public:
  struct Entry {
    SegmentOrigin segment;
    Access access = Access::read_write;
    std::uint32_t epoch = 0;
  };

  explicit SegmentDirectory(Ring& ring) noexcept;

  /// Returns the random number that names the queue within a process.
  std::uint64_t queue() const noexcept;
  /// Returns whether all users sleep at once instead of spinning first.
  bool sleeps() const noexcept;
  /// Returns whether the queue ends with its producers.
  bool ends_with_producers() const noexcept;
  /// Sets queue(), sleeps() and ends_with_producers(). REQUIRES: the creator calls it, once.
  void describe(std::uint64_t queue, bool sleeps, bool ends_with_producers = false);
  /// Notes that a process has become a producer.
  void note_producer() noexcept;
  bool has_had_producer() const noexcept;

  std::uint32_t epoch() const noexcept { return epoch_in(state().load(std::memory_order_acquire)); }
  /// Returns whether append() would find room now.
  bool has_room() const noexcept;
  /// Appends an entry and returns its index in epoch(), which may have changed; empty if there is no room. Throws
  /// out_of_memory. REQUIRES: the producers' lock.
  std::optional<std::uint16_t> append(const SegmentOrigin& segment, Access access);
  /// Returns the epoch to which the entry of this index belongs now.
  std::uint32_t epoch_of(std::uint16_t index) const noexcept;
  /// Returns the entry. Throws bad_handle if it does not exist or contradicts itself.
  Entry read(std::uint16_t index) const;

  static constexpr std::uint32_t kHalf = 32'767;
  static constexpr std::size_t kIndices = 65'535;  ///< all are below

 private:
  struct Head;
  struct PackedEntry;

  static std::uint32_t epoch_in(std::uint64_t state) noexcept {
    return static_cast<std::uint32_t>(state >> 32);
  }
  static std::uint32_t count_in(std::uint64_t state) noexcept { return static_cast<std::uint32_t>(state); }
  static std::uint32_t epoch_of(std::uint16_t index, std::uint64_t state) noexcept;
  bool may_turn(std::uint32_t epoch) const noexcept;
  std::uint64_t turn(std::uint32_t epoch);
  bool is_there(std::uint16_t index, std::uint64_t state) const noexcept;
  Head& head() const noexcept;
  std::atomic<std::uint64_t>& state() const noexcept { return *state_; }
  PackedEntry& packed(std::uint16_t index) const noexcept;

  Ring& ring_;
  std::atomic<std::uint64_t>* const state_;  ///< {epoch, entries in its half}
};

}  // namespace onecopy
