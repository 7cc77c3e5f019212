// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "page_runs.h"

namespace onecopy {

/// An allocator of extents up to 32 KiB: each size class cuts page runs ("slabs") into equal slots and keeps one bit
/// per slot. Classes have steps of 64 bytes up to 512, then four classes for each power of two.
///
/// Invariant: the list of a class contains exactly its slabs with a free slot; at most one slab of a class is empty, as
/// a reserve. Thread safety: none; Pool locks.
class SmallExtents {
 public:
  static constexpr std::uint64_t kLargest = std::uint64_t{32} << 10;
  static constexpr unsigned kClasses = 32;

  explicit SmallExtents(std::uint32_t page_bytes);

  /// Returns the class of a size. REQUIRES: 0 < bytes <= kLargest.
  static unsigned class_of(std::uint64_t bytes) noexcept;
  static std::uint32_t slot_bytes(unsigned size_class) noexcept;
  std::uint32_t slab_pages(unsigned size_class) const noexcept;

  struct Slot {
    std::uint32_t segment;
    std::uint64_t offset;  ///< the offset in the segment
  };
  /// Allocates a slot. Returns nothing if the class has no free slot, after which the caller must add a slab.
  std::optional<Slot> allocate(unsigned size_class) noexcept;
  /// Adds a slab and returns its number.
  std::uint32_t add_slab(unsigned size_class, const PageRun& run);

  struct FreedExtent {
    std::uint32_t bytes = 0;      ///< the size of the slot; 0 if there is no live slot
    std::optional<PageRun> slab;  ///< the pages to give back if the slab became empty
  };
  FreedExtent free(std::uint32_t slab, std::uint64_t offset) noexcept;

  /// Takes the reserve slabs that were empty at this call and at one at or before `until`.
  std::vector<PageRun> take_idle(PoolTime now, PoolTime until);
  bool has_empty() const noexcept { return empty_ > 0; }

 private:
  static constexpr std::uint32_t kNone = 0xffffffff;
  struct Slab {
    PageRun run;
    std::uint32_t size_class = 0;
    std::uint32_t slots = 0;
    std::uint32_t used = 0;
    std::uint32_t hint = 0;  ///< words before this one are full
    std::uint32_t previous = kNone;
    std::uint32_t next = kNone;
    std::optional<PoolTime> idle_since;
    std::vector<std::uint64_t> taken;  ///< one bit per slot; bits past the last slot are set
  };

  void link(std::uint32_t number) noexcept;
  void unlink(std::uint32_t number) noexcept;
  PageRun retire(std::uint32_t number) noexcept;

  std::uint32_t page_bytes_;
  std::deque<Slab> slabs_;
  std::vector<std::uint32_t> unused_;  ///< free indices of slabs_; always has room for all of them
  std::array<std::uint32_t, kClasses> heads_{};
  std::array<std::uint32_t, kClasses> reserves_{};
  std::uint32_t empty_ = 0;
};

}  // namespace onecopy
