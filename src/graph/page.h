// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory>

#include "device/backend.h"
#include "device/reservation.h"
#include "onecopy/core/device.h"

namespace onecopy::graph {

/// The scratch memory of an arena from an offset on. A window maps the page whole, in one mapping, or in parts if the
/// window has memory of its own in this range. The page allocates memory for either form when a window first maps it.
/// Their contents may differ; nothing reads them between replays.
///
/// Thread safety: none; the arena's lock protects it. Invariant: bytes() is a multiple of part_bytes().
class Page {
 public:
  Page(Device device, std::size_t offset, std::size_t bytes, std::size_t part_bytes) noexcept
      : device_(device), offset_(offset), bytes_(bytes), part_bytes_(part_bytes) {}

  std::size_t offset() const noexcept { return offset_; }
  std::size_t bytes() const noexcept { return bytes_; }
  std::size_t end() const noexcept { return offset_ + bytes_; }
  std::size_t part_bytes() const noexcept { return part_bytes_; }

  /// Returns the memory of the whole page; part() returns the part at an offset. Both functions throw out_of_memory.
  const PhysicalChunk& whole() {
    if (!whole_) whole_ = backend(device_.type).create_chunk(device_.index, bytes_);
    return *whole_;
  }
  const PhysicalChunk& part(std::size_t at) {
    const auto found = parts_.find(at);
    if (found != parts_.end()) return *found->second;
    return *parts_.emplace(at, backend(device_.type).create_chunk(device_.index, part_bytes_))
                .first->second;
  }
  /// Returns whether the page has memory only in parts.
  bool is_in_parts() const noexcept { return !whole_ && !parts_.empty(); }
  /// Releases the memory whose form (whole or parts) is not to be kept, because no window maps it.
  void keep(bool whole, bool parts) noexcept {
    if (!whole) whole_.reset();
    if (!parts) parts_.clear();
  }
  /// Returns the bytes of physical memory.
  std::size_t memory() const noexcept { return (whole_ ? bytes_ : 0) + parts_.size() * part_bytes_; }

 private:
  Device device_;
  std::size_t offset_;
  std::size_t bytes_;
  std::size_t part_bytes_;
  std::unique_ptr<PhysicalChunk> whole_{};
  /// The parts by their offset in the arena.
  std::map<std::size_t, std::unique_ptr<PhysicalChunk>> parts_{};
};

}  // namespace onecopy::graph
