// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "device/backend.h"
#include "memory/known_segments.h"
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
  /// Returns whether one of the segments has another holder, such as a thread that has it pinned.
  bool is_held() const;
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
    SegmentPlace place;
    std::shared_ptr<DeviceMemory> memory;  ///< shared with holders that have it pinned
  };
  using Segments = std::map<std::uint32_t, Mapped>;

  const Mapped* find_mapped(std::uint32_t segment, Access access) const noexcept REQUIRES(mutex_);
  const Mapped* find_any_mapped(std::uint32_t segment, Access access) const noexcept REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::array<Segments, 2> mapped_ GUARDED_BY(mutex_);  ///< by Access, then by number
  std::array<KnownSegments<SegmentPlace>, 2> known_;   ///< by Access; written under mutex_
};

}  // namespace onecopy
