// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "channel/ring/ring_layout.h"
#include "os/mapping.h"

namespace onecopy {

/// The memory of the items. A logical chunk has 1024 consecutive positions and gets a physical chunk when its first
/// item is put. A physical chunk is free when the last logical chunk that had it is drained. The head alone tells this,
/// so there is no list that could need repair.
///
/// Thread safety: find() may be called by any thread; assign() and trim() under the producers' lock. No step needs
/// repair when its caller dies: the next caller may do it again.
class RingChunks {
 public:
  RingChunks(int fd, const Mapping& memory, RingGeometry geometry) noexcept;

  /// Returns the slot of a position; nullptr if its chunk has no memory yet. Throws protocol.
  RingSlot* find(std::uint64_t position) const {
    const std::uint64_t logical = position / kItemsPerChunk;
    const std::uint32_t physical = directory_[logical & mask_].load();
    if (physical > mask_) throw_damaged("chunk number", physical);
    if (owners_[physical].load() != logical + 1) return nullptr;
    return slots_ + physical * kItemsPerChunk + position % kItemsPerChunk;
  }

  /// Gives memory to the chunk of `tail`, which is warm if possible, and returns the slot. Throws out_of_memory (with
  /// nothing changed), protocol.
  RingSlot* assign(std::uint64_t tail, std::uint64_t head);
  /// Gives the memory of drained chunks back to the system, except that of the first `keep` chunks. Takes at most a few
  /// milliseconds.
  void trim(std::uint64_t head, std::uint32_t keep) noexcept;

  /// Reserves memory for a part of the extra bytes. Throws out_of_memory.
  void reserve_extra(std::size_t offset, std::size_t size) {
    reserve_bytes(geometry_.extra() + offset, size);
  }

  /// Returns the number of chunks in use or reusable. A few of them may be without memory.
  std::uint32_t count() const noexcept { return count_.load(std::memory_order_relaxed); }
  /// Counts the chunks that have memory.
  std::uint32_t committed() const noexcept;
  std::uint64_t max_chunks() const noexcept { return geometry_.max_chunks(); }
  [[noreturn]] static void throw_damaged(const char* what, std::uint64_t value);

  /// The number of chunks that an idle ring keeps.
  static constexpr std::uint32_t kKeep = 2;

 private:
  static constexpr std::uint64_t kHole = ~std::uint64_t{0};

  std::uint32_t find_free(std::uint64_t head_chunk);
  std::uint32_t grow(std::uint32_t count);
  void reserve(std::uint32_t first, std::uint32_t chunks);
  void punch(std::uint32_t first, std::uint32_t chunks) noexcept;
  void reserve_bytes(std::size_t offset, std::size_t size);
  void reserve_directory(std::uint64_t logical);
  void trim_if_shallow(std::uint64_t tail, std::uint64_t head) noexcept;

  int fd_;  ///< owned by the ring
  RingGeometry geometry_;
  std::uint64_t mask_;
  std::atomic<std::uint32_t>& count_;
  std::atomic<std::uint32_t>* directory_;
  std::atomic<std::uint64_t>* owners_;  ///< logical chunk + 1, 0 = none yet, kHole = no memory
  RingSlot* slots_;
  std::uint32_t shallow_ = 0;  ///< chunks assigned in a row while most of the memory was unused
};

}  // namespace onecopy
