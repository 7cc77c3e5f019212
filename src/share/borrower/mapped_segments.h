// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "device/backend.h"
#include "onecopy/core/tensor_view.h"
#include "os/mutex.h"

namespace onecopy {

/// The place where a segment is mapped in this process; empty if it is not mapped.
struct SegmentPlace {
  std::byte* data = nullptr;
  std::uint64_t size = 0;
  SegmentKind kind = SegmentKind::memfd;
  const DeviceIdentity* identity = nullptr;
  int user = 0;  ///< the device that can use `data`; for other devices call MappedSegments::allow()
  explicit operator bool() const noexcept { return data != nullptr; }
};

/// Remembers some mapped segments for readers that take no lock. A slot changes only after its segment was forgotten,
/// and a segment's number is never reused. So if a slot has one number before and after a read, it has not changed in
/// between.
///
/// Thread safety: find() may be called by any thread; the others by one thread at a time.
class SegmentPlaces {
 public:
  /// Returns the place, which is empty if the segment is not remembered.
  SegmentPlace find(std::uint32_t segment, Access access) const noexcept {
    const std::uint64_t key = key_of(segment, access);
    const Slot& slot = slots_[key % kSlots];
    if (slot.key.load() != key) return {};
    const SegmentPlace place{slot.data.load(), slot.size.load(), slot.kind.load(), slot.identity.load(),
                             slot.user.load()};
    return slot.key.load() == key ? place : SegmentPlace{};
  }
  /// Remembers a place. Has no effect if another segment has the slot.
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
  /// Forgets the segment for good. REQUIRES: this process holds no block of it.
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
  /// Returns a key that is never 0.
  static std::uint64_t key_of(std::uint32_t segment, Access access) noexcept {
    return std::uint64_t{segment} * 2 + static_cast<std::uint64_t>(access) + 1;
  }

  std::array<Slot, kSlots> slots_;
};

/// A request for a segment.
struct SegmentRequest {
  std::uint32_t segment;
  Access access;
  std::int32_t number = 0;  ///< the result of Backend::borrower_number() for the segment's kind
  /// The device of this process that uses the segment; empty for the memory's own device.
  std::optional<Device> user{};
};

/// The segments of another process that are mapped here: each for reading, for writing, or once for either.
///
/// A caller that holds a block of a segment keeps it from being retired, and may use the result of find(). Thread
/// safety: all members may be called concurrently, but for the fork ones.
class MappedSegments {
 public:
  /// Returns where the segment is mapped for `access`; empty while it is not. Rarely takes a lock. REQUIRES: the caller
  /// holds a block of the segment.
  SegmentPlace find(std::uint32_t segment, Access access);
  /// Returns where the segment is mapped for `access`, or else for the other access.
  SegmentPlace find_any(std::uint32_t segment, Access access);
  bool contains(std::uint32_t segment, Access access) const;
  /// Maps the segment for the wanted device of this process, or else for the memory's own. Has no effect if it is
  /// mapped for that access already. REQUIRES: no thread calls close() before map() returns, because the caller holds a
  /// block of the owner or no other thread knows this object: a closed object would keep the memory for ever.
  void map(const SegmentRequest& wanted, ExportedMemory memory);

  /// Exports the segment for another process. Throws owner_died if it is not mapped here for that access.
  ExportedMemory export_memory(std::uint32_t segment, Access access) const;
  /// Calls DeviceMemory::allow() of the segment. Returns null if the segment is not mapped.
  std::byte* allow(std::uint32_t segment, Access access, int ordinal);
  /// Returns a pointer that keeps the segment mapped; null if it is not mapped.
  std::shared_ptr<DeviceMemory> memory(std::uint32_t segment, Access access) const noexcept;
  std::size_t count() const;
  /// Returns whether one of the segments is memory of a device.
  bool uses_devices() const;
  /// Returns the segments whose memory ends with their owner.
  std::vector<std::uint32_t> weak() const;

  /// Unmaps a segment that its owner has given back. Owners do so only when no process holds a block of the segment, so
  /// no tensor points into it.
  void retire(std::uint32_t segment) noexcept;
  /// Unmaps all segments for ever. REQUIRES: this process holds no block of them.
  void close() noexcept;

  // The fork handlers call the following members.
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }

 private:
  struct Mapped {
    std::shared_ptr<DeviceMemory> memory;  ///< shared with holders that have it pinned
    const DeviceIdentity* identity = nullptr;
    int user = 0;
  };
  using Segments = std::vector<Mapped>;

  const Mapped* find_mapped(std::uint32_t segment, Access access) const noexcept REQUIRES(mutex_);
  const Mapped* find_any_mapped(std::uint32_t segment, Access access) const noexcept REQUIRES(mutex_);

  mutable Mutex mutex_;
  /// The places of some of the segments; written under mutex_. Null after close().
  std::unique_ptr<SegmentPlaces> places_ = std::make_unique<SegmentPlaces>();
  std::array<Segments, 2> mapped_ GUARDED_BY(mutex_);  ///< by Access, then by number
};

}  // namespace onecopy
