// SPDX-License-Identifier: Apache-2.0
#include "core/fields.h"

#include <gtest/gtest.h>

#include "support/refusal.h"

namespace onecopy {
namespace {

using testing::expect_refusal;

struct Inner {
  std::string name;
  bool is_here = false;
  void fields(auto& f) { f(name, is_here); }
  bool operator==(const Inner&) const = default;
};
struct Outer {
  std::uint64_t number = 0;
  std::array<std::uint16_t, 3> numbers{};
  std::vector<Inner> inner;
  std::map<std::string, std::string> pairs;
  Bytes bytes;
  void fields(auto& f) { f(number, numbers, inner, pairs, bytes); }
  bool operator==(const Outer&) const = default;
};

const Outer kOuter{7, {1, 2, 3}, {{"a", true}, {"", false}}, {{"k", "v"}}, Bytes(3, std::byte{9})};

Outer read(ByteSpan bytes) { return read_fields<Outer>(bytes, ErrorCode::protocol, "a message"); }

TEST(Fields, AreReadAsTheyWereWritten) { EXPECT_EQ(read(write_fields(kOuter)), kOuter); }

TEST(Fields, CutOffAnywhereAreRefusedAndSoIsOneByteMore) {
  Bytes bytes = write_fields(kOuter);
  for (std::size_t size = 0; size < bytes.size(); ++size)
    expect_refusal(ErrorCode::protocol, {"a message", "cut off"},
                   [&] { read(ByteSpan(bytes).first(size)); });
  bytes.push_back({});
  expect_refusal(ErrorCode::protocol, {"1 bytes too many"}, [&] { read(bytes); });
}

TEST(Fields, AFalseNumberOfItemsTakesNoMemory) {
  Bytes bytes = write_fields(std::vector<Inner>(1));
  write_value(bytes.data(), ~std::uint32_t{0});
  expect_refusal(ErrorCode::protocol, {"cut off"},
                 [&] { read_fields<std::vector<Inner>>(bytes, ErrorCode::protocol, "a message"); });
}

}  // namespace
}  // namespace onecopy
