// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "onecopy/core/error.h"
#include "store/format/message.h"
#include "store/format/record.h"
#include "store/format/table.h"
#include "support/codec_vectors.h"

namespace onecopy::store {
namespace {

ErrorCode refusal(const auto& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "nothing was refused";
  return ErrorCode::system;
}

Table sample_table() {
  Table table;
  table.rows = {{"a", Layout(DType::f32, {3, 5}), 0},
                {"b/c", Layout(DType::bf16, {0}), 0},
                {"d", Layout(DType::u8), 0}};
  table.size = assign_offsets(table.rows) + 4096;
  table.key = {{"rank", "0"}};
  table.attributes = {{"source", "a file"}};
  table.checksums = {1, 2, 3};
  table.device_type = 1;
  table.parts = {{table.size - 512, 1, 2, Bytes(3, std::byte{7})}, {512, 1, 2, {}}};
  return table;
}

TEST(StoreTable, IsReadAsItWasWritten) {
  const Table table = sample_table();
  const Table read = decode_table(encode(table));
  EXPECT_EQ(read.rows, table.rows);
  EXPECT_EQ(read.size, table.size);
  EXPECT_EQ(read.key, table.key);
  EXPECT_EQ(read.attributes, table.attributes);
  EXPECT_EQ(read.checksums, table.checksums);
  EXPECT_EQ(read.parts, table.parts);
}

TEST(StoreTable, IsWrittenAsItsPageSays) {
  Table table;
  table.rows = {{"a", Layout(DType::f32, {2, 3}), 0},
                {"tied", Layout(DType::f32, {2, 3}), 0},
                {"b", Layout(DType::i64), 512}};
  table.size = 1024;
  table.key = {{"rank", "0"}};
  table.bytes = {{"config", "{}"}};
  table.device_type = 1;
  table.parts = {{1024, 1, 1, {}}};
  const auto vectors = test::read_vectors("docs/design/formats/store-table-v2.md");
  ASSERT_EQ(vectors.size(), 1u);
  EXPECT_EQ(test::to_hex(encode(table)), vectors.front().text("hex"));
}

TEST(StoreTable, PlacesTensorsAtMultiplesOf512Bytes) {
  for (const Row& row : sample_table().rows) EXPECT_EQ(row.offset % kAlignment, 0u);
}

TEST(StoreTable, ReadsNoRowsOfAKnownLayout) {
  const Bytes bytes = encode(sample_table());
  const ByteSpan layout = layout_of(bytes);
  EXPECT_TRUE(decode_table(bytes, layout).rows.empty());
  EXPECT_EQ(decode_table(bytes, layout.first(3)).rows.size(), 3u);
}

TEST(StoreTable, WithAnyByteChangedIsRefused) {
  const Bytes bytes = encode(sample_table());
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    Bytes damaged = bytes;
    damaged[at] ^= std::byte{0x41};
    EXPECT_EQ(refusal([&] { decode_table(damaged); }), ErrorCode::bad_handle) << at;
  }
}

TEST(StoreTable, CutOffAnywhereIsRefused) {
  const Bytes bytes = encode(sample_table());
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_EQ(refusal([&] { decode_table(ByteSpan(bytes).first(size)); }), ErrorCode::bad_handle) << size;
}

TEST(StoreTable, RefusesRowsOutsideItsMemory) {
  Table table = sample_table();
  table.size = 512;
  EXPECT_EQ(refusal([&] { decode_table(encode(table)); }), ErrorCode::bad_handle);
}

TEST(StoreTable, RefusesPartsThatAreNotItsMemory) {
  Table table = sample_table();
  table.parts.front().bytes += 512;
  EXPECT_EQ(refusal([&] { decode_table(encode(table)); }), ErrorCode::bad_handle);
  table.parts.front().bytes -= 1024;
  EXPECT_EQ(refusal([&] { decode_table(encode(table)); }), ErrorCode::bad_handle);
}

TEST(StoreTable, RefusesANameTwice) {
  std::vector<Row> rows{{"a", Layout(DType::u8), 0}, {"a", Layout(DType::u8), 0}};
  EXPECT_EQ(refusal([&] { assign_offsets(rows); }), ErrorCode::invalid_argument);
}

TEST(StoreTable, NamesTheFirstDifference) {
  const std::vector<Row> before = sample_table().rows;
  auto after = before;
  EXPECT_EQ(first_difference(before, after), "");
  after[0].layout = Layout(DType::f32, {3, 4});
  EXPECT_EQ(first_difference(before, after), "\"a\" is float32[3, 4] and was float32[3, 5]");
  after = before;
  after.pop_back();
  EXPECT_EQ(first_difference(before, after), "\"d\" is missing");
}

TEST(StoreRecord, IsReadAsItWasWritten) {
  Record record{Record::Kind::publish, 7, {}};
  record.version = {7, 3, "llama", Token{1, 2}, 4096, "cpu", 5, 6, 2};
  EXPECT_EQ(decode_record(encode(record)), record);
  const Record drop{Record::Kind::drop, 7, {}};
  EXPECT_EQ(decode_record(encode(drop)), drop);
}

TEST(StoreMessage, CutOffOrTooLongIsRefused) {
  Bytes packet = pack(Open{"llama", 3, Token{7}});
  for (std::size_t size = 0; size < packet.size(); ++size)
    EXPECT_EQ(refusal([&] { unpack<Open>(ByteSpan(packet).first(size)); }), ErrorCode::protocol) << size;
  packet.push_back({});
  EXPECT_EQ(refusal([&] { unpack<Open>(packet); }), ErrorCode::protocol);
}

TEST(StoreMessage, OfAnotherVersionIsRefusedAsSuch) {
  Bytes packet = pack(Done{});
  packet[0] = std::byte{99};
  EXPECT_EQ(refusal([&] { unpack<Done>(packet); }), ErrorCode::version_mismatch);
}

TEST(StoreMessage, ARefusalIsTheErrorThatItCarries) {
  const Bytes packet = refuse(Error(ErrorCode::stale_handle, "it is gone"));
  EXPECT_EQ(refusal([&] { unpack<Opened>(packet); }), ErrorCode::stale_handle);
}

TEST(StoreName, IsTextWithoutControlCharacters) {
  check_name("org/model: größe");
  for (const std::string& name :
       {std::string(), std::string("a\nb"), std::string(1025, 'x'), std::string("\xff")})
    EXPECT_EQ(refusal([&] { check_name(name); }), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace onecopy::store
