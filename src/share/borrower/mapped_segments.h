// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "device/backend.h"
#include "os/mutex.h"
#include "share/borrower/segment_places.h"

namespace onecopy {

/// A segment as it is asked for.
struct SegmentRequest {
  std::uint32_t segment;
  Access access;
  std::int32_t number = 0;       ///< Backend::borrower_number() of the segment's kind
  std::optional<Device> user{};  ///< the device of this process that uses it; none: the memory's own
};

/// Another process's segments that are mapped here: each for reading, for writing, or once for either.
///
/// A caller that holds a block of a segment keeps it from being retired, and may use the result of find(). Thread
/// safety: all members may be called concurrently, but for the fork ones.
class MappedSegments {
 public:
  /// Where it is mapped for `access`; empty while it is not. Seldom takes a lock. REQUIRES: the caller holds a
  /// block of it.
  SegmentPlace find(std::uint32_t segment, Access access);
  /// Where it is mapped for `access`, or else for the other access.
  SegmentPlace find_any(std::uint32_t segment, Access access);
  bool contains(std::uint32_t segment, Access access) const;
  /// Maps the segment for the wanted device of this process, or else for the memory's own. Has no effect if it is
  /// mapped for that access already. REQUIRES: no thread calls close() meanwhile, because the caller holds a block of
  /// the owner or is the only one to know this object. A closed object would keep the memory for ever.
  void map(const SegmentRequest& wanted, ExportedMemory memory);

  /// Exports the segment for another process. Throws owner_died if it is not mapped here for that access.
  ExportedMemory export_memory(std::uint32_t segment, Access access) const;
  /// See DeviceMemory::allow(); null when it is not mapped.
  std::byte* allow(std::uint32_t segment, Access access, int ordinal);
  /// Keeps the segment mapped while the pointer lives. Null if it is not mapped.
  std::shared_ptr<DeviceMemory> memory(std::uint32_t segment, Access access) const noexcept;
  std::size_t count() const;
  /// Is memory of a device among them?
  bool uses_devices() const;
  /// Segments whose memory ends with their owner.
  std::vector<std::uint32_t> weak() const;

  /// The owner has given the segment back. It does so only when no process holds a block of it: no tensor points
  /// there.
  void retire(std::uint32_t segment) noexcept;
  /// Unmaps all, for good. REQUIRES: this process holds no block of any.
  void close() noexcept;

  // Around a fork.
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
  /// Places of some of them; written under mutex_. Empty once it is closed.
  std::unique_ptr<SegmentPlaces> places_ = std::make_unique<SegmentPlaces>();
  std::array<Segments, 2> mapped_ GUARDED_BY(mutex_);  ///< by Access, by number
};

}  // namespace onecopy
