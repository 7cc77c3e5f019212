// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "device/backend.h"
#include "share/borrower/segment_places.h"

namespace onecopy {

/// Another process's segments that are mapped here: each for reading, for writing, or once for either.
///
/// Whoever holds a block of a segment keeps it from being retired, and so may use what find() said.
/// Thread safety: all members may be called concurrently, but for the fork ones.
class ForeignSegments {
 public:
  /// Where it is mapped for `access`; empty while it is not. Seldom takes a lock. REQUIRES: the caller holds a
  /// block of it.
  SegmentPlace find(std::uint32_t segment, Access access);
  /// The same, or else where it is mapped in the other way.
  SegmentPlace find_any(std::uint32_t segment, Access access);
  bool contains(std::uint32_t segment, Access access) const;
  /// For the device `user` of this process, or else for the memory's own. Without effect when it is mapped for `access`
  /// already.
  void map(std::uint32_t segment, Access access, ExportedMemory memory, std::optional<Device> user = {});

  /// What another process needs to map it. Throws owner_died when it is not mapped here for that.
  ExportedMemory export_memory(std::uint32_t segment, Access access) const;
  /// See DeviceMemory::allow(); null when it is not mapped.
  std::byte* allow(std::uint32_t segment, Access access, int ordinal);
  /// The same to keep: it stays mapped so long. Null when it is not mapped.
  std::shared_ptr<DeviceMemory> memory(std::uint32_t segment, Access access) const noexcept;
  std::size_t count() const;
  /// Is memory of any device among them?
  bool uses_devices() const;
  /// Those whose memory ends with their owner.
  std::vector<std::uint32_t> weak() const;

  /// The owner has given it back, which it does only when nobody holds a block of it: nothing points there.
  void retire(std::uint32_t segment) noexcept;
  /// Unmaps all, for good. REQUIRES: nobody holds a block of any.
  void close() noexcept;

  // Around a fork.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  struct Mapped {
    std::shared_ptr<DeviceMemory> memory;  ///< shared with those that have it pinned
    const DeviceIdentity* identity = nullptr;
    int user = 0;
  };
  using Segments = std::vector<Mapped>;

  /// REQUIRES: mutex_, as find_any_mapped().
  const Mapped* find_mapped(std::uint32_t segment, Access access) const noexcept;
  const Mapped* find_any_mapped(std::uint32_t segment, Access access) const noexcept;

  mutable std::mutex mutex_;
  /// Of some of them; written under mutex_. None once it is closed.
  std::unique_ptr<SegmentPlaces> places_ = std::make_unique<SegmentPlaces>();
  std::array<Segments, 2> mapped_;  ///< by Access, by number
};

}  // namespace onecopy
