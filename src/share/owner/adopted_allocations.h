// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "onecopy/memory/tensor.h"
#include "os/mutex.h"
#include "share/owner/ledger.h"

namespace onecopy {

/// The memory of devices that frameworks allocated, as segments of ours. One allocation is one segment, no matter how
/// many tensors it contains. The segment stays for a while after its last tensor, so that memory that is shared
/// repeatedly is mapped once.
///
/// Borrowers keep the segment mapped for the same time, and should unmap it soon after the framework frees the memory.
/// Therefore it stays for a second, and longer only while the driver says that the allocation still exists.
///
/// Thread safety: all members may be called concurrently.
class AdoptedAllocations final : public ExtentOwner {
 public:
  static constexpr std::chrono::milliseconds kDecay{1000};
  static constexpr std::chrono::milliseconds kDecayWhileThere{3000};
  static constexpr std::chrono::milliseconds kAskAgain{250};

  /// Constructs an empty collection. `idle` is called when a segment becomes idle, after which the maker of this object
  /// must call sweep().
  AdoptedAllocations(SegmentTable& segments, Ledger& ledger, Wakeup idle = {})
      : segments_(segments), ledger_(ledger), idle_(std::move(idle)) {}

  /// Adopts memory as a block. `owner` is dropped once no process holds the block.
  Tensor adopt(const TensorView& view, std::shared_ptr<const void> owner);
  void free(const Extent& extent) noexcept override;
  bool contains(std::uint32_t segment) const;
  /// Drops segments that have been idle for long enough. Returns when to look at the next idle one, if any.
  std::optional<std::chrono::steady_clock::duration> sweep(std::chrono::steady_clock::time_point now);
  void sweep_all() { sweep(std::chrono::steady_clock::time_point::max()); }

 private:
  using Key = std::pair<std::byte*, std::size_t>;  // base, bytes
  struct AdoptedSegment {
    ForeignMemory memory;
    std::uint32_t segment = 0;
    std::uint64_t blocks = 0;
    std::chrono::steady_clock::time_point idle_since;
    /// The time at which the driver is asked whether an idle allocation still exists.
    std::chrono::steady_clock::time_point ask_again;
    bool stale = false;       ///< the memory was freed, and may belong to another allocation by now
    std::uint64_t round = 0;  ///< the AdoptionRound in which the driver was last asked
  };

  /// A segment in which one more block was counted, and the address of its first byte.
  struct CountedSegment {
    std::uint32_t segment = 0;
    std::byte* base = nullptr;
  };
  CountedSegment count_block_of(const TensorView& view, std::size_t bytes);
  std::optional<CountedSegment> enter_known(const TensorView& view, std::size_t bytes);
  AdoptedSegment* find_known(const TensorView& view, std::size_t bytes) REQUIRES(mutex_);
  std::uint32_t enter(const ForeignMemory& memory);
  std::vector<ForeignMemory> take_due(std::chrono::steady_clock::time_point now);
  void find_freed(std::chrono::steady_clock::time_point now);
  static std::chrono::steady_clock::time_point next_look(const AdoptedSegment& idle) noexcept;
  static bool has_decayed(const AdoptedSegment& idle, std::chrono::steady_clock::time_point now) noexcept;

  SegmentTable& segments_;
  Ledger& ledger_;
  const Wakeup idle_;
  mutable Mutex mutex_;
  std::map<Key, std::uint32_t> by_place_ GUARDED_BY(mutex_);
  std::map<std::uint32_t, AdoptedSegment> by_segment_ GUARDED_BY(mutex_);
};

}  // namespace onecopy
