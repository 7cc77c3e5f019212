// SPDX-License-Identifier: Apache-2.0
#include "channel/codec/item.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "onecopy/core/error.h"
#include "support/refusal.h"

namespace onecopy {
namespace {

ItemRow row_of(const Layout& layout) {
  ItemRow row;
  row.generation = (std::uint64_t{1} << 61) + 7;
  row.tensor_offset = 4096;
  row.block = 123'456;
  row.segment = 17;
  row.layout = layout;
  return row;
}

Bytes item_of(const ItemHead& head, const std::vector<ItemRow>& rows, ByteSpan data = {}) {
  Bytes item;
  item.resize(sizeof head);
  write_value(item.data(), head);
  for (const ItemRow& row : rows) {
    const std::size_t at = item.size();
    item.resize(at + encoded_size(row));
    EXPECT_EQ(encode(row, item.data() + at), item.data() + item.size());
  }
  item.insert(item.end(), data.begin(), data.end());
  return item;
}

void expect_same(const ItemRow& a, const ItemRow& b) {
  EXPECT_EQ(a.generation, b.generation);
  EXPECT_EQ(a.tensor_offset, b.tensor_offset);
  EXPECT_EQ(a.block, b.block);
  EXPECT_EQ(a.segment, b.segment);
  EXPECT_EQ(a.layout, b.layout) << a.layout.str() << " " << b.layout.str();
}

TEST(Item, ComesBackAsItWas) {
  const std::vector<Layout> layouts = {
      Layout(DType::f32),
      Layout(DType::u8, {0}),
      Layout(DType::bf16, {2, 3, 4}),
      Layout(DType::f64, {1, 1, 1, 1, 7}),
      Layout(DType::i8, {std::int64_t{5} << 32}),
      Layout(DType::i64, {3, 4}, {1, 3}),
  };
  const Bytes data{std::byte{1}, std::byte{2}, std::byte{3}};
  std::vector<ItemRow> rows;
  for (const Layout& layout : layouts) rows.push_back(row_of(layout));
  const Bytes item = item_of({42, 3, 6, 0}, rows, data);
  ItemReader reader(item);
  EXPECT_EQ(reader.head().tag, 42u);
  for (const ItemRow& row : rows) expect_same(reader.next_row(), row);
  EXPECT_EQ(Bytes(reader.data().begin(), reader.data().end()), data);
}

TEST(Item, OfOneTensorOfThreeDimensionsFitsBesideItsStampInOneCacheLine) {
  EXPECT_LE(sizeof(ItemHead) + encoded_size(row_of(Layout(DType::f32, {8, 1024, 4096}))), 48u);
}

TEST(Item, TakesAWholeHandleInPlaceOfARow) {
  const Bytes handle(200, std::byte{9});
  ItemRow row;
  row.segment = kWholeHandle;
  row.handle = handle;
  const Bytes item = item_of({0, 0, 1, 0}, {row});
  ItemReader reader(item);
  const ItemRow back = reader.next_row();
  EXPECT_EQ(back.segment, kWholeHandle);
  EXPECT_EQ(Bytes(back.handle.begin(), back.handle.end()), handle);
}

TEST(Item, CutOffAnywhereIsRefused) {
  const Bytes item = item_of(
      {1, 2, 2, 0}, {row_of(Layout(DType::f32, {3})), row_of(Layout(DType::f32, {3}, {2}))}, Bytes(2));
  for (std::size_t size = 0; size < item.size(); ++size) {
    testing::expect_refusal(ErrorCode::bad_handle, {}, [&] {
      ItemReader reader(ByteSpan(item).first(size));
      reader.next_row();
      reader.next_row();
      reader.data();
    });
  }
}

TEST(Item, ThatIsElsewhereHasNothingElseInIt) {
  const Bytes item = item_of({1, 4, 1, kItemIsElsewhere}, {row_of(Layout(DType::u8, {3}))}, Bytes(4));
  testing::expect_refusal(ErrorCode::bad_handle, {"elsewhere"}, [&] { ItemReader reader(item); });
}

struct Lie {
  const char* name;
  std::size_t at;
  std::uint8_t value;
  const char* message;
};

class ItemLies : public ::testing::TestWithParam<Lie> {};

TEST_P(ItemLies, AndIsRefusedWithTheReason) {
  Bytes item = item_of({1, 0, 1, 0}, {row_of(Layout(DType::f32, {3}))});
  item.at(GetParam().at) = std::byte{GetParam().value};
  testing::expect_refusal(ErrorCode::bad_handle, {GetParam().message}, [&] {
    ItemReader reader(item);
    reader.next_row();
    reader.data();
  });
}

INSTANTIATE_TEST_SUITE_P(
    Item, ItemLies,
    ::testing::Values(Lie{"Flags", 10, 8, "unknown flags 0x8"}, Lie{"Form", 12, 3, "unknown form 3"},
                      Lie{"DType", 34, 200, "200 is not the number of a dtype"},
                      Lie{"Dimensions", 35, 65, "65 dimensions"},
                      Lie{"MoreDimensionsThanBytes", 35, 2, "ends within its tensor 0"},
                      Lie{"DataLength", 4, 9, "0 bytes of data where it announces 9"}),
    [](const auto& lie) { return lie.param.name; });

Bytes ordered_item(const ItemOrder& order, ByteSpan data = {}) {
  Bytes item = item_of({0, static_cast<std::uint32_t>(data.size()), 2, kItemIsOrdered},
                       {row_of(Layout(DType::f32)), row_of(Layout(DType::f32))});
  const std::size_t at = item.size();
  item.resize(at + encoded_size(order));
  EXPECT_EQ(encode(order, item.data() + at), item.data() + item.size());
  item.insert(item.end(), data.begin(), data.end());
  return item;
}

ItemOrder read_order(const Bytes& item) {
  ItemReader reader(item);
  reader.next_row();
  reader.next_row();
  ItemOrder order = reader.order();
  reader.data();
  return order;
}

TEST(Item, SaysWhatItsTensorsWaitFor) {
  const ItemOrder order{{1, 2, 3}, {{77, 5, 0}, {std::uint64_t{1} << 61, 9, 1}}};
  const ItemOrder read = read_order(ordered_item(order, Bytes{std::byte{1}}));
  EXPECT_EQ(read.putter, order.putter);
  ASSERT_EQ(read.points.size(), 2u);
  EXPECT_EQ(read.points[1].value, std::uint64_t{1} << 61);
  EXPECT_EQ(read.points[1].slot, 9u);
  EXPECT_EQ(read.points[1].row, 1u);
}

/// Without tensors on devices: the getter's next work waits.
TEST(Item, SaysWhatItsValuesComeAfter) {
  const ItemOrder order{{1, 2, 3}, {{77, 5, kNoRow}, {78, 6, kNoRow}, {79, 7, kNoRow}}};
  EXPECT_TRUE(order.is_of_values());
  const ItemOrder read = read_order(ordered_item(order));
  ASSERT_EQ(read.points.size(), 3u) << "more than the item has tensors";
  EXPECT_TRUE(read.is_of_values());
  EXPECT_EQ(read.points[2].value, 79u);
}

/// The example of docs/design/formats/queue-item-v1.md.
TEST(Item, AnOrderOfValuesIsWrittenAsTheFormatSays) {
  const ItemOrder order{{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {{9, 2, kNoRow}}};
  Bytes written(encoded_size(order));
  encode(order, written.data());
  std::string hex;
  for (const std::byte b : written) hex += fmt::format("{:02x}", static_cast<unsigned>(b));
  EXPECT_EQ(hex, "000102030405060708090a0b0c0d0e0f01000000090000000000000002000000ffffffff");
}

TEST(Item, AnOrderOfValuesThatCannotBeIsRefused) {
  const auto refused = [](const ItemOrder& order) {
    const Bytes item = ordered_item(order);
    testing::expect_refusal(ErrorCode::bad_handle, {"waits for"}, [&] { read_order(item); });
  };
  refused({{}, {{1, 5, kNoRow}, {1, 5, 0}}});
  refused({{}, {{1, 5, 0}, {1, 5, kNoRow}}});
  refused({{}, {{0, 5, kNoRow}}});
  refused({{}, std::vector<ItemPoint>(kMaxValuePoints + 1, {1, 5, kNoRow})});
}

TEST(Item, AnOrderThatCannotBeIsRefused) {
  const auto refused = [](const ItemOrder& order) {
    const Bytes item = ordered_item(order);
    testing::expect_refusal(ErrorCode::bad_handle, {"waits for"}, [&] { read_order(item); });
  };
  refused({{}, {{0, 5, 0}}});
  refused({{}, {{std::uint64_t{1} << 62, 5, 0}}});
  refused({{}, {{1, 5, 2}}});
  refused({{}, std::vector<ItemPoint>(kMaxValuePoints + 1, {1, 5, 0})});
  Bytes item = ordered_item({{}, {{1, 5, 0}}});
  item.resize(item.size() - 1);
  testing::expect_refusal(ErrorCode::bad_handle, {"waits for"}, [&] { read_order(item); });
}

}  // namespace
}  // namespace onecopy
