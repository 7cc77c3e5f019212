// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "channel/ring/ring.h"
#include "onecopy/core/tensor_view.h"
#include "share/session.h"

namespace onecopy {

/// The segments that rows of a queue's items lie in, each named once and by its index from then on; and the creator's
/// description of the queue. The directory lies in the ring's extra bytes.
///
/// The directory has two halves of kHalf entries. Entries are appended to one half. When that is full, the other is
/// begun again, once all items that were put before it was left have been taken. Each beginning is an epoch.
///
/// Thread safety: all members may be called concurrently, append() inside Ring::exclusively(). Invariants:
///  - An item's rows name entries of the epoch in which it is put, which the putter checks under the producers' lock.
///  - So entries that the item at the head names stay as they are until it is taken.
///  - An entry or an epoch exists from one store on, so the death of an appender needs no repair.
class SegmentDirectory {
 public:
  struct Entry {
    SegmentRef segment;
    Access access = Access::read_write;
    std::uint32_t epoch = 0;
  };

  explicit SegmentDirectory(Ring& ring) noexcept;

  /// Returns the random number that names the queue within a process.
  std::uint64_t queue() const noexcept;
  /// Returns whether waits of all users sleep at once.
  bool sleeps() const noexcept;
  /// Sets both. REQUIRES: the creator calls it, once.
  void describe(std::uint64_t queue, bool sleeps);

  std::uint32_t epoch() const noexcept { return epoch_in(state().load(std::memory_order_acquire)); }
  /// Returns whether append() would find room now.
  bool has_room() const noexcept;
  /// The new entry's index in epoch(), which may be another one than before; empty if there is no room. Throws
  /// out_of_memory. REQUIRES: the producers' lock.
  std::optional<std::uint16_t> append(const SegmentRef& segment, Access access);
  /// The epoch that the entry of this index is of now.
  std::uint32_t epoch_of(std::uint16_t index) const noexcept;
  /// Throws bad_handle if the entry does not exist or contradicts itself.
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
