// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "onecopy/channel/message_kind.h"
#include "onecopy/core/bytes.h"
#include "onecopy/core/layout.h"
#include "onecopy/share/handle_fields.h"

/// The bytes of a queue's item, described in docs/design/formats/queue-item-v1.md: a head, a row for each tensor, the
/// points that streams must reach, and plain data. An item of one small tensor fits into the cache line of its stamp.
namespace onecopy {

/// The first bytes of an item: the numbers of its parts.
struct ItemHead {
  std::uint32_t tag = 0;
  std::uint32_t data_bytes = 0;
  std::uint16_t rows = 0;
  std::uint8_t flags = 0;
  MessageKind kind = MessageKind::user;
};
static_assert(sizeof(ItemHead) == 12);

/// Marks an item whose only row names a block of bytes, which contain the actual item.
inline constexpr std::uint8_t kItemIsElsewhere = 1;
/// Marks an item that was put as a tensor, not as a message.
inline constexpr std::uint8_t kItemIsOneTensor = 2;
/// Marks an item that says, after its rows, which points the putter's streams must have passed before the tensors are
/// used.
inline constexpr std::uint8_t kItemIsOrdered = 4;
inline constexpr std::uint8_t kKnownItemFlags = 7;

/// Stands in place of a row if the item contains no tensors on devices and the getter's later work comes after the
/// points.
inline constexpr std::uint32_t kNoRow = 0xffff'ffff;
/// The max number of points for values, which exceeds the devices of a process.
inline constexpr std::uint32_t kMaxValuePoints = 128;

/// Stands in place of a segment's index: `block` is then the length of an encoded handle, which follows.
inline constexpr std::uint16_t kWholeHandle = 0xffff;

/// A tensor as an item names it. The queue's SegmentDirectory names the tensor's segment.
struct ItemRow {
  std::uint64_t generation = 0;
  std::uint64_t tensor_offset = 0;
  std::uint32_t block = 0;
  std::uint16_t segment = 0;
  Layout layout;
  ByteSpan handle;  ///< replaces all fields above if segment is kWholeHandle
};

/// A point that the putter's stream had reached on one of the item's devices.
struct ItemPoint {
  std::uint64_t value = 0;
  std::uint32_t slot = 0;  ///< the slot in the putter's timeline
  std::uint32_t row = 0;   ///< the first tensor on that device; kNoRow in all points of an item of values
};
static_assert(sizeof(ItemPoint) == 16);

/// The points that streams wait for before they touch an item's tensors; empty if there are none.
struct ItemOrder {
  ProcessId putter{};
  std::vector<ItemPoint> points;  ///< one for each device

  /// Returns whether the points apply to the getter's next work, not to tensors.
  bool is_of_values() const noexcept { return !points.empty() && points.front().row == kNoRow; }
};

std::size_t encoded_size(const ItemOrder& order) noexcept;
/// Writes encoded_size(order) bytes and returns their end. REQUIRES: there are points.
std::byte* encode(const ItemOrder& order, std::byte* out) noexcept;
std::size_t encoded_size(const ItemRow& row) noexcept;
/// Writes encoded_size(row) bytes and returns their end.
std::byte* encode(const ItemRow& row, std::byte* out) noexcept;

/// Reads an item that other processes may be changing: every byte is read once and checked before it is used. All
/// members throw bad_handle. Thread safety: none. The bytes must outlive the reader.
class ItemReader {
 public:
  explicit ItemReader(ByteSpan item);

  const ItemHead& head() const noexcept { return head_; }
  bool is_elsewhere() const noexcept { return (head_.flags & kItemIsElsewhere) != 0; }
  /// Returns the next row. REQUIRES: called at most head().rows times.
  ItemRow next_row();
  /// Returns the order, which is empty for items that are not ordered. REQUIRES: all rows have been read.
  ItemOrder order();
  /// Returns the plain bytes, which are still in shared memory. REQUIRES: rows and order have been read.
  ByteSpan data() const;

 private:
  ItemHead head_;
  ByteSpan rest_;
  std::int64_t row_ = 0;
};

}  // namespace onecopy
