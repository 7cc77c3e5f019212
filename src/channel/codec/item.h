// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "onecopy/channel/message_kind.h"
#include "onecopy/core/bytes.h"
#include "onecopy/core/layout.h"
#include "onecopy/share/handle_fields.h"

/// The bytes of a queue's item, byte by byte in docs/design/formats/queue-item-v1.md: a head, a row for each
/// tensor, where streams have to come to, plain data. One small tensor fits into the cache line that its stamp is in.
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

/// The only row names a block of bytes, which hold the item.
inline constexpr std::uint8_t kItemIsElsewhere = 1;
/// Marks an item that was put as a tensor, not as a message.
inline constexpr std::uint8_t kItemIsOneTensor = 2;
/// Marks an item that says, after its rows, how far which streams of its putter must come before its tensors are used.
inline constexpr std::uint8_t kItemIsOrdered = 4;
inline constexpr std::uint8_t kKnownItemFlags = 7;

/// Stands in place of a row if the item contains no tensors on devices and the getter's later work comes after the
/// points.
inline constexpr std::uint32_t kNoRow = 0xffff'ffff;
/// The max number of points for values, which exceeds the devices of a process.
inline constexpr std::uint32_t kMaxValuePoints = 128;

/// Stands in place of a segment's index: `block` is a length then, and that many bytes of an encoded handle follow.
inline constexpr std::uint16_t kWholeHandle = 0xffff;

/// A tensor as an item names it. The queue's SegmentDirectory says which segment it lies in.
struct ItemRow {
  std::uint64_t generation = 0;
  std::uint64_t tensor_offset = 0;
  std::uint32_t block = 0;
  std::uint16_t segment = 0;
  Layout layout;
  ByteSpan handle;  ///< in place of all the above when segment is kWholeHandle
};

/// A point that the putter's stream had reached on one of the item's devices.
struct ItemPoint {
  std::uint64_t value = 0;
  std::uint32_t slot = 0;  ///< of the putter's timeline
  std::uint32_t row = 0;   ///< the first tensor on that device, or kNoRow in all of an item's
};
static_assert(sizeof(ItemPoint) == 16);

/// The points that streams wait for before they touch an item's tensors; empty if there are none.
struct ItemOrder {
  ProcessId putter{};
  std::vector<ItemPoint> points;  ///< one a device

  /// Returns whether the points hold for the getter's next work instead of for tensors.
  bool is_of_values() const noexcept { return !points.empty() && points.front().row == kNoRow; }
};

std::size_t encoded_size(const ItemOrder& order) noexcept;
/// Writes encoded_size(order) bytes; returns the end. REQUIRES: there are points.
std::byte* encode(const ItemOrder& order, std::byte* out) noexcept;
std::size_t encoded_size(const ItemRow& row) noexcept;
/// Writes encoded_size(row) bytes; returns the end.
std::byte* encode(const ItemRow& row, std::byte* out) noexcept;

/// Reads an item that other processes may be changing: every byte is read once and checked before it is used. All
/// members throw bad_handle. Thread safety: none. The bytes must outlive the reader.
class ItemReader {
 public:
  explicit ItemReader(ByteSpan item);

  const ItemHead& head() const noexcept { return head_; }
  bool is_elsewhere() const noexcept { return (head_.flags & kItemIsElsewhere) != 0; }
  /// REQUIRES: called head().rows times at most.
  ItemRow next_row();
  /// Returns the order, which is empty for items that are not ordered. REQUIRES: all rows have been read.
  ItemOrder order();
  /// The plain bytes, after rows and order have been read. The bytes are still shared memory.
  ByteSpan data() const;

 private:
  ItemHead head_;
  ByteSpan rest_;
  std::int64_t row_ = 0;
};

}  // namespace onecopy
