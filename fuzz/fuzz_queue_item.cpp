// SPDX-License-Identifier: Apache-2.0
// Items of a queue: for any bytes in its memory, reading refuses them or yields rows that can be written again and
// stay equal.
#include <algorithm>

#include "channel/codec/item.h"
#include "fuzz_input.h"

namespace onecopy::fuzz {
namespace {

void check_row(const ItemRow& row) {
  if (row.segment == kWholeHandle) return;
  require(row.layout.extent_bytes() <= static_cast<std::size_t>(INT64_MAX), "extents have 63 bits");
  Bytes again(sizeof(ItemHead) + encoded_size(row));
  write_value(again.data(), ItemHead{0, 0, 1, 0});
  require(encode(row, again.data() + sizeof(ItemHead)) == again.data() + again.size(),
          "a row has its size");
  ItemReader reader(again);
  const ItemRow back = reader.next_row();
  require(back.generation == row.generation && back.tensor_offset == row.tensor_offset &&
              back.block == row.block && back.segment == row.segment && back.layout == row.layout,
          "a row survives being written and read");
  require(reader.data().empty(), "a row ends where it says");
}

bool read_item(ByteSpan item) {
  ItemReader reader(item);
  for (std::size_t i = 0; i < reader.head().rows; ++i) check_row(reader.next_row());
  const ItemOrder order = reader.order();
  const std::size_t most = std::max<std::size_t>(kMaxValuePoints, reader.head().rows);
  require(order.points.size() <= most, "at most one point a tensor, or a device");
  for (const ItemPoint& point : order.points)
    require(order.is_of_values() ? point.row == kNoRow : point.row < reader.head().rows,
            "all points are of tensors of the item, or none is");
  const ByteSpan data = reader.data();
  require(data.size() == reader.head().data_bytes, "the data is as long as announced");
  require(data.data() + data.size() == item.data() + item.size(), "nothing is left over");
  return true;
}

}  // namespace
}  // namespace onecopy::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace onecopy;
  const ByteSpan input = fuzz::span_of(data, size);
  fuzz::accepted({ErrorCode::bad_handle}, [&] { return fuzz::read_item(input); });
  return 0;
}
