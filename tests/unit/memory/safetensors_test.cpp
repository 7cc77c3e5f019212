// SPDX-License-Identifier: Apache-2.0
#include "memory/safetensors.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <numeric>

#include "conformance/scratch_directory.h"
#include "onecopy/core/error.h"
#include "os/file.h"

namespace onecopy {
namespace {

ByteSpan bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

SafetensorsHeader parse(const std::string& json, std::uint64_t data_bytes) {
  return parse_safetensors_header(bytes_of(json), 8 + json.size() + data_bytes);
}

/// The text of the refusal; empty if there was none.
std::string refusal(const std::string& json, std::uint64_t data_bytes,
                    ErrorCode expected = ErrorCode::bad_file) {
  try {
    parse(json, data_bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), expected) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << json;
  return "";
}

#define EXPECT_REFUSED(json, data_bytes, reason) \
  EXPECT_NE(refusal(json, data_bytes).find(reason), std::string::npos) << refusal(json, data_bytes)

std::string one(const std::string& fields) { return "{\"t\":{" + fields + "}}"; }

TEST(Safetensors, ReadsAHeader) {
  const SafetensorsHeader header = parse(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,3],"data_offsets":[4,28]},)"
      R"("a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},"s":{"dtype":"BOOL","shape":[],"data_offsets":[28,29]}}  )",
      29);
  ASSERT_EQ(header.entries.size(), 3u);
  EXPECT_EQ(header.entries[0].name, "a");
  EXPECT_EQ(header.entries[0].dtype, DType::bf16);
  EXPECT_EQ(header.entries[1].name, "b");
  EXPECT_EQ(header.entries[1].shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(header.entries[1].begin, 4u);
  EXPECT_EQ(header.entries[1].end, 28u);
  EXPECT_TRUE(header.entries[2].shape.empty());
  EXPECT_EQ(header.metadata, (std::map<std::string, std::string>{{"format", "pt"}}));
  EXPECT_EQ(header.data_offset + 29, header.file_size);
}

TEST(Safetensors, AFileWithoutTensorsIsValid) {
  EXPECT_TRUE(parse("{}", 0).entries.empty());
  EXPECT_TRUE(parse(R"({"__metadata__":{}})", 0).entries.empty());
}

TEST(Safetensors, EmptyTensorsMayLieAnywhereBetweenOthers) {
  const auto header = parse(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                            R"("e":{"dtype":"F64","shape":[0,9],"data_offsets":[2,2]},)"
                            R"("b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
                            3);
  EXPECT_EQ(header.entries[1].name, "e");
}

TEST(Safetensors, NamesMayBeAnyUnicode) {
  EXPECT_EQ(parse("{\"\u00e4\\u00df\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1)
                .entries[0]
                .name,
            "\u00e4\u00df");
}

TEST(Safetensors, RefusesHeadersThatAreNotJson) {
  EXPECT_REFUSED("", 0, "does not start with {");
  EXPECT_REFUSED("[]", 0, "does not start with {");
  EXPECT_REFUSED(" {}", 0, "does not start with {");
  EXPECT_REFUSED("{", 0, "not JSON");
  EXPECT_REFUSED("{}x", 0, "not JSON");
  EXPECT_REFUSED("{\"a\"}", 0, "not JSON");
  EXPECT_REFUSED(std::string("{}\0", 3), 0, "not JSON");
}

TEST(Safetensors, RefusesWhatIsNotUtf8) {
  EXPECT_REFUSED("{\"\xff\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "not UTF-8");
  EXPECT_REFUSED("{\"\xc0\xaf\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "not UTF-8");
}

TEST(Safetensors, RefusesNamesThatComeTwice) {
  const std::string t = R"("t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  EXPECT_REFUSED("{" + t + "," + t + "}", 1, "\"t\" comes twice");
  EXPECT_REFUSED(one(R"("dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1])"), 1,
                 "\"dtype\" comes twice");
  EXPECT_REFUSED(one(R"("shape":[1],"dtype":"U8","shape":[],"data_offsets":[0,1])"), 1,
                 "\"shape\" comes twice");
  EXPECT_REFUSED(one(R"("dtype":"U8","shape":[1],"data_offsets":[0,1],"data_offsets":[0,1])"), 1,
                 "comes twice");
  EXPECT_REFUSED(R"({"__metadata__":{"a":"1","a":"2"}})", 0, "\"a\" comes twice");
  EXPECT_REFUSED(R"({"__metadata__":{},"__metadata__":{}})", 0, "comes twice");
}

TEST(Safetensors, RefusesRangesThatContradictEachOther) {
  const auto two = [](const char* a, const char* b) {
    return std::string(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)") + a +
           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + b + "}}";
  };
  EXPECT_NO_THROW(parse(two("[4,8]", "[0,4]"), 8));
  EXPECT_REFUSED(two("[0,4]", "[3,7]"), 7, "overlapping");
  EXPECT_REFUSED(two("[0,4]", "[0,4]"), 4, "overlapping");
  EXPECT_REFUSED(two("[0,4]", "[5,9]"), 9, "hole");
  EXPECT_REFUSED(two("[1,5]", "[5,9]"), 9, "hole");
  EXPECT_REFUSED(two("[0,4]", "[4,8]"), 7, "cut off");
  EXPECT_REFUSED(two("[0,4]", "[4,8]"), 9, "1 bytes of data belong to no tensor");
  EXPECT_REFUSED(two("[4,0]", "[4,8]"), 8, "before its begin");
  EXPECT_REFUSED(two("[18446744073709551612,0]", "[4,8]"), 8, "before its begin");
  EXPECT_REFUSED(two("[18446744073709551611,18446744073709551615]", "[0,4]"), 8, "cut off");
  EXPECT_REFUSED("{}", 1, "belong to no tensor");
}

TEST(Safetensors, RefusesSizesThatDoNotFitDtypeAndShape) {
  EXPECT_REFUSED(one(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), 4, "need 8");
  EXPECT_REFUSED(one(R"("dtype":"F32","shape":[],"data_offsets":[0,0])"), 0, "need 4");
  EXPECT_REFUSED(one(R"("dtype":"U8","shape":[9223372036854775807,4],"data_offsets":[0,4])"), 4, "\"t\"");
  EXPECT_REFUSED(one(R"("dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,4])"), 4, "too large");
  EXPECT_REFUSED(one(R"("dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,0])"), 0, "\"t\"");
}

TEST(Safetensors, RefusesValuesOfTheWrongKind) {
  EXPECT_REFUSED(one(R"("dtype":"F31","shape":[1],"data_offsets":[0,4])"), 4, "unknown dtype");
  EXPECT_REFUSED(one(R"("dtype":7,"shape":[1],"data_offsets":[0,4])"), 4, "a string belongs");
  EXPECT_REFUSED(one(R"("dtype":["F32"],"shape":[1],"data_offsets":[0,4])"), 4, "an array");
  EXPECT_REFUSED(one(R"("dtype":"F32","shape":1,"data_offsets":[0,4])"), 4, "an array of integers belongs");
  EXPECT_REFUSED(one(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), 4, "-1 where");
  EXPECT_REFUSED(one(R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])"), 4, "1.0 where");
  EXPECT_REFUSED(one(R"("dtype":"F32","shape":["1"],"data_offsets":[0,4])"), 4, "a string where");
  EXPECT_REFUSED(one(R"("dtype":"F32","shape":[[1]],"data_offsets":[0,4])"), 4, "an array where");
  EXPECT_REFUSED(one(R"("dtype":"F32","shape":null,"data_offsets":[0,4])"), 4, "null where");
  EXPECT_REFUSED(one(R"("dtype":"F32","shape":[1],"data_offsets":[0])"), 4, "1 data_offsets");
  EXPECT_REFUSED(one(R"("dtype":"F32","shape":[1],"data_offsets":[])"), 4, "0 data_offsets");
  EXPECT_REFUSED(one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4,8])"), 4, "more than two");
  EXPECT_REFUSED(one(R"("dtype":"F32","shape":[1],"data_offsets":[0,1e30])"), 4, "1e30 where");
  EXPECT_REFUSED(one(R"("dtype":"F32","shape":[1])"), 4, "no \"data_offsets\"");
  EXPECT_REFUSED(one(R"("shape":[1],"data_offsets":[0,4])"), 4, "no \"dtype\"");
  EXPECT_REFUSED(one(R"("dtype":"F32","data_offsets":[0,4])"), 4, "no \"shape\"");
  EXPECT_REFUSED(one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1)"), 4, "unknown field");
  EXPECT_REFUSED(R"({"t":[]})", 0, "an array where");
  EXPECT_REFUSED(R"({"t":true})", 0, "true where");
  EXPECT_REFUSED(R"({"__metadata__":{"a":1}})", 0, "1 where a string belongs");
  EXPECT_REFUSED(R"({"__metadata__":{"a":{}}})", 0, "an object where");
  EXPECT_REFUSED(R"({"__metadata__":[]})", 0, "an array where");
}

TEST(Safetensors, ElementsSmallerThanAByteAreUnsupported) {
  refusal(one(R"("dtype":"F4","shape":[2],"data_offsets":[0,1])"), 1, ErrorCode::unsupported);
}

TEST(Safetensors, DeepNestingAndManyDimensionsAreRefusedEarly) {
  EXPECT_REFUSED("{\"t\":" + std::string(100'000, '['), 0, "an array where");
  std::string shape = "1";
  for (int i = 0; i < 64; ++i) shape += ",1";
  EXPECT_REFUSED(one("\"dtype\":\"U8\",\"shape\":[" + shape + "],\"data_offsets\":[0,1]"), 1,
                 "64 dimensions");
}

TEST(Safetensors, MessagesAreShortAscii) {
  const std::string name(5000, '\x01');
  std::string escaped;
  for (std::size_t i = 0; i < name.size(); ++i) escaped += "\\u0001";
  const std::string why = refusal("{\"" + escaped + "\":1}", 0);
  EXPECT_LT(why.size(), 1000u);
  for (const char c : why) ASSERT_TRUE(c >= 0x20 && c < 0x7f);
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const std::string json =
      R"({"__metadata__":{"a":"b"},"t":{"dtype":"U8","shape":[1,2],"data_offsets":[0,2]}})";
  for (std::size_t length = 0; length < json.size(); ++length) refusal(json.substr(0, length), 2);
}

struct SafetensorsFile : ::testing::Test {
  Fd write(const std::string& content) {
    std::ofstream(path, std::ios::binary) << content;
    return open_file(path, O_RDONLY);
  }
  static std::string length(std::uint64_t bytes) {
    std::string text(8, '\0');
    std::memcpy(text.data(), &bytes, 8);
    return text;
  }
  ScratchDirectory directory;
  std::string path = directory.path() + "/x.safetensors";
};

TEST_F(SafetensorsFile, LiesAboutTheHeadersLengthAreRefused) {
  EXPECT_THROW(read_safetensors_header(write("")), Error);
  EXPECT_THROW(read_safetensors_header(write("1234567")), Error);
  EXPECT_THROW(read_safetensors_header(write(length(3) + "{}")), Error);
  EXPECT_THROW(read_safetensors_header(write(length(~std::uint64_t{0}) + "{}")), Error);
  EXPECT_THROW(read_safetensors_header(write(length(0) + "{}")), Error);
  EXPECT_NO_THROW(read_safetensors_header(write(length(2) + "{}")));
  write(length(kMaxSafetensorsHeader + 1) + "{}");
  std::filesystem::resize_file(path, kMaxSafetensorsHeader * 2);
  EXPECT_THROW(read_safetensors_header(open_file(path, O_RDONLY)), Error);
}

TEST_F(SafetensorsFile, WhatIsWrittenCanBeRead) {
  std::vector<float> floats(12);
  std::iota(floats.begin(), floats.end(), 0.f);
  std::vector<std::uint8_t> bytes{1, 2, 3};
  const std::int64_t shape[] = {4, 3};
  const std::int64_t transposed[] = {1, 4};
  const std::vector<std::pair<std::string, TensorView>> tensors{
      {"bytes", {bytes.data(), Layout(DType::f8_e5m2, {3}), kCpu, Access::read_only}},
      {"columns", {floats.data(), Layout(DType::f32, shape, transposed), kCpu, Access::read_write}},
      {"empty", {nullptr, Layout(DType::f64, {0, 4}), kCpu, Access::read_write}},
      {"scalar", {floats.data() + 5, Layout(DType::f32), kCpu, Access::read_write}},
  };
  write_safetensors(path, tensors, {{"made by", "a test"}});
  const Fd file = open_file(path, O_RDONLY);
  const SafetensorsHeader header = read_safetensors_header(file);
  EXPECT_EQ(header.metadata.at("made by"), "a test");
  EXPECT_EQ(header.data_offset % 8, 0u);
  ASSERT_EQ(header.entries.size(), 4u);
  EXPECT_EQ(header.entries[0].name, "empty");
  EXPECT_EQ(header.entries[1].name, "columns");
  EXPECT_EQ(header.entries[2].name, "scalar");
  EXPECT_EQ(header.entries[3].name, "bytes");
  EXPECT_EQ(header.entries[3].dtype, DType::f8_e5m2);
  std::vector<float> read(13);
  read_exactly(file, std::as_writable_bytes(std::span(read)), header.data_offset);
  EXPECT_EQ(read, (std::vector<float>{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11, 5}));
}

TEST_F(SafetensorsFile, AFileThatCannotBeWrittenLeavesNothingBehind) {
  std::uint8_t byte = 0;
  const TensorView view{&byte, Layout(DType::u8), kCpu, Access::read_write};
  const auto write = [&](std::vector<std::pair<std::string, TensorView>> tensors) {
    write_safetensors(path, tensors);
  };
  EXPECT_THROW(write({{"a", view}, {"b", view}, {"a", view}}), Error);
  EXPECT_THROW(write({{"__metadata__", view}}), Error);
  EXPECT_THROW(write({{"a", {&byte, Layout(DType::c128, {0}), kCpu, Access::read_write}}}), Error);
  EXPECT_THROW(write({{"a", {&byte, Layout(DType::u8), Device{DeviceType::cuda, 0}, Access::read_write}}}),
               Error);
  EXPECT_THROW(write({{"\xff", view}}), Error);
  EXPECT_EQ(directory.files(), 0u);
}

}  // namespace
}  // namespace onecopy
