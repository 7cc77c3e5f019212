// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "device/backend.h"
#include "onecopy/core/tensor_view.h"

namespace onecopy {

/// Where a segment is mapped in this process; empty: nowhere.
struct SegmentPlace {
  std::byte* data = nullptr;
  std::uint64_t size = 0;
  SegmentKind kind = SegmentKind::memfd;
  const DeviceIdentity* identity = nullptr;
  int user = 0;  ///< the device that finds it there; for others there is MappedSegments::allow()
  explicit operator bool() const noexcept { return data != nullptr; }
};

/// Remembers some mapped segments for readers that take no lock. A slot changes only after its segment was forgotten,
/// and a segment's number is never reused. So if a slot has one number before and after a read, it has not changed in
/// between.
///
/// Thread safety: find() may be called by any thread; the others by one thread at a time.
class SegmentPlaces {
 public:
  /// Empty if the segment is not remembered.
  SegmentPlace find(std::uint32_t segment, Access access) const noexcept {
    const std::uint64_t key = key_of(segment, access);
    const Slot& slot = slots_[key % kSlots];
    if (slot.key.load() != key) return {};
    const SegmentPlace place{slot.data.load(), slot.size.load(), slot.kind.load(), slot.identity.load(),
                             slot.user.load()};
    return slot.key.load() == key ? place : SegmentPlace{};
  }
  /// Has no effect if another segment has the slot.
  void remember(std::uint32_t segment, Access access, const SegmentPlace& place) noexcept {
    const std::uint64_t key = key_of(segment, access);
    Slot& slot = slots_[key % kSlots];
    if (slot.key.load() != 0) return;
    slot.data.store(place.data);
    slot.size.store(place.size);
    slot.kind.store(place.kind);
    slot.identity.store(place.identity);
    slot.user.store(place.user);
    slot.key.store(key);
  }
  /// For good: this process holds no block of the segment any more.
  void forget(std::uint32_t segment) noexcept {
    for (const Access access : {Access::read_only, Access::read_write}) {
      const std::uint64_t key = key_of(segment, access);
      if (Slot& slot = slots_[key % kSlots]; slot.key.load() == key) slot.key.store(0);
    }
  }

 private:
  static constexpr std::size_t kSlots = 64;
  struct Slot {
    std::atomic<std::uint64_t> key{0};
    std::atomic<std::byte*> data{nullptr};
    std::atomic<std::uint64_t> size{0};
    std::atomic<SegmentKind> kind{SegmentKind::memfd};
    std::atomic<const DeviceIdentity*> identity{nullptr};
    std::atomic<int> user{0};
  };
  /// Never 0.
  static std::uint64_t key_of(std::uint32_t segment, Access access) noexcept {
    return std::uint64_t{segment} * 2 + static_cast<std::uint64_t>(access) + 1;
  }

  std::array<Slot, kSlots> slots_;
};

}  // namespace onecopy
