// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace onecopy {

/// The values of some segments, by number, for readers that take no lock. A slot changes only after its segment was
/// removed, and numbers are not reused, so a slot with the number of a segment in use has the value of that segment.
///
/// Thread safety: find() may be called by any thread that keeps the segment from being removed; the others by one
/// thread at a time.
template <class Value>
class KnownSegments {
 public:
  /// Returns the value of the segment; null if it is not remembered.
  const Value* find(std::uint32_t segment) const noexcept {
    const Slot& slot = slots_[segment % kSlots];
    return slot.segment == segment ? slot.value.load() : nullptr;
  }
  /// Remembers a value, which must exist until forget(). Has no effect if another segment has the slot.
  void remember(std::uint32_t segment, const Value& value) noexcept {
    Slot& slot = slots_[segment % kSlots];
    if (slot.segment != 0) return;
    slot.value = &value;
    slot.segment = segment;
  }
  void forget(std::uint32_t segment) noexcept {
    Slot& slot = slots_[segment % kSlots];
    if (slot.segment != segment) return;
    slot.segment = 0;
    slot.value = nullptr;
  }

 private:
  static constexpr std::size_t kSlots = 64;
  struct Slot {
    std::atomic<std::uint32_t> segment{0};  ///< 0 for none
    std::atomic<const Value*> value{nullptr};
  };
  std::array<Slot, kSlots> slots_;
};

}  // namespace onecopy
