// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "onecopy/device/backend.h"

namespace onecopy {

/// A piece of a segment, handed out by a Pool.
struct Extent {
  std::uint32_t segment = 0;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;  ///< bytes usable; at least what was asked for
  std::byte* data = nullptr;
};

/// What a segment is, for handles and listings.
struct SegmentInfo {
  std::uint32_t number = 0;
  SegmentKind kind = SegmentKind::memfd;
  Device device;
  std::uint64_t size = 0;       ///< address range in bytes
  std::uint64_t committed = 0;  ///< bytes of physical memory reserved
};

/// All segments of this process, over all pools, by number. Numbers start at 1 and are never reused.
/// Thread safety: all members may be called concurrently.
class SegmentTable {
 public:
  /// Called (without locks held) after a segment has left the table.
  std::function<void(std::uint32_t number)> on_retire;

  std::uint32_t next_number() noexcept;
  void add(std::uint32_t number, Device device, std::unique_ptr<DeviceMemory> memory);
  /// Unmaps the segment. REQUIRES: no block of it is in use anywhere.
  void remove(std::uint32_t number);
  /// Throws stale_handle when there is no such segment (any more).
  ExportedMemory export_memory(std::uint32_t number, Access access) const;
  SegmentInfo info(std::uint32_t number) const;
  std::vector<SegmentInfo> list() const;

 private:
  struct Entry {
    Device device;
    std::unique_ptr<DeviceMemory> memory;
  };
  mutable std::mutex mutex_;
  std::map<std::uint32_t, Entry> entries_;
  std::uint32_t last_ = 0;
};

}  // namespace onecopy
