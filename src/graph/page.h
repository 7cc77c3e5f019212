// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory>

#include "device/reservation.h"
#include "onecopy/core/device.h"

namespace onecopy::graph {

/// Scratch memory of an arena from an offset on. A window shows it whole, by one mapping, or in parts: a window with
/// memory of its own in this range shows parts of the page around it. Both are memory of the page, made when a window
/// first shows it. Their content differs, which is as good: it is of no value between replays.
///
/// Thread safety: none; the arena's lock. Invariant: `bytes()` is a multiple of `part_bytes()`.
class Page {
 public:
  Page(Device device, std::size_t offset, std::size_t bytes, std::size_t part_bytes) noexcept;

  std::size_t offset() const noexcept { return offset_; }
  std::size_t bytes() const noexcept { return bytes_; }
  std::size_t end() const noexcept { return offset_ + bytes_; }
  std::size_t part_bytes() const noexcept { return part_bytes_; }

  /// These throw out_of_memory.
  const PhysicalChunk& whole();
  const PhysicalChunk& part(std::size_t at);
  /// Does the page have memory in parts alone?
  bool is_in_parts() const noexcept { return !whole_ && !parts_.empty(); }
  /// Gives back the memory that no window shows.
  void keep(bool whole, bool parts) noexcept;
  /// Physical bytes.
  std::size_t memory() const noexcept;

 private:
  Device device_;
  std::size_t offset_;
  std::size_t bytes_;
  std::size_t part_bytes_;
  std::unique_ptr<PhysicalChunk> whole_{};
  std::map<std::size_t, std::unique_ptr<PhysicalChunk>> parts_{};  ///< by offsets in the arena
};

}  // namespace onecopy::graph
