// SPDX-License-Identifier: Apache-2.0
#include "onecopy/rpc/value.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "rpc/value_codec.h"
#include "support/child.h"
#include "support/numbers.h"
#include "support/refusal.h"
#include "support/watchdog.h"
#include "unit/rpc/meeting.h"

namespace onecopy::rpc {
namespace {

using testing::Child;
using testing::expect_refusal;
using testing::Shared;
using testing::Watchdog;

Value there_and_back(const Value& value) {
  Message message;
  encode_value(value, message);
  return decode_value(message.data, message.tensors);
}

Bytes bytes_of(std::initializer_list<int> bytes) {
  Bytes made;
  for (const int byte : bytes) made.push_back(static_cast<std::byte>(byte));
  return made;
}

TEST(Value, OfANumberComesBack) {
  for (const std::int64_t number :
       {0L, 127L, 128L, -1L, -128L, -129L, 32768L, -32769L, 1L << 31, -(1L << 31) - 1,
        std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min()})
    EXPECT_EQ(there_and_back(number).as_int(), number);
  EXPECT_EQ(there_and_back(0.5).as_double(), 0.5);
  EXPECT_EQ(there_and_back(7).as_double(), 7.0);
  EXPECT_TRUE(there_and_back(true).as_bool());
  EXPECT_EQ(there_and_back(std::complex(1.0, -2.0)).as_complex(), std::complex(1.0, -2.0));
  EXPECT_EQ(there_and_back({}).kind(), Value::Kind::none);
}

TEST(Value, OfBytesAndTextsOfEachLengthComesBack) {
  for (const std::size_t size : {0, 31, 32, 255, 256, 70'000}) {
    const std::string text(size, 'x');
    EXPECT_EQ(there_and_back(text).as_text(), text);
    EXPECT_EQ(there_and_back(Value::bytes(Bytes(size, std::byte{7}))).as_bytes(),
              Bytes(size, std::byte{7}));
  }
}

TEST(Value, OfContainersComesBackWithTheirItems) {
  for (const std::size_t size : {0, 7, 8, 15, 16, 300}) {
    const Value::List items(size, Value(3));
    EXPECT_EQ(there_and_back(Value::list(items)).as_list().size(), size);
    EXPECT_EQ(there_and_back(Value::tuple(items)).kind(), Value::Kind::tuple);
  }
  const Value dict = there_and_back(Value::dict({{"a", 1}, {2, Value::list({"b"})}}));
  ASSERT_EQ(dict.as_dict().size(), 2U);
  EXPECT_EQ(dict.as_dict()[0].first.as_text(), "a");
  EXPECT_EQ(dict.as_dict()[1].second.as_list()[0].as_text(), "b");
}

TEST(Value, ThatOccursTwiceIsWrittenOnce) {
  Value value = Value::list({1, 2, 3});
  for (int i = 0; i < 30; ++i) value = Value::list({value, value});
  Message message;
  encode_value(value, message);
  EXPECT_LT(message.data.size(), 300U);
  const Value back = decode_value(message.data, {});
  EXPECT_EQ(&back.as_list()[0].as_list(), &back.as_list()[1].as_list());
}

TEST(Value, IsRefusedWhereItIsNestedTooDeeplyOrNoText) {
  Value value = 1;
  for (int i = 0; i < 32; ++i) value = Value::tuple({value});
  EXPECT_EQ(there_and_back(value).as_list().size(), 1U);
  Message message;
  expect_refusal(ErrorCode::invalid_argument, {"32 deep"},
                 [&] { encode_value(Value::list({value}), message); });
  expect_refusal(ErrorCode::invalid_argument, {"UTF-8", "bytes"}, [&] { encode_value("\xff", message); });
}

TEST(Value, OfAnotherKindSaysWhich) {
  expect_refusal(ErrorCode::invalid_argument, {"a tensor is wanted, and this value is a str"},
                 [] { Value("x").as_tensor(); });
  expect_refusal(ErrorCode::invalid_argument, {"a list is wanted, and this value is None"},
                 [] { Value().as_list(); });
}

TEST(Value, ThatIsDamagedIsRefused) {
  for (const Bytes& bytes :
       {bytes_of({}), bytes_of({0xff}), bytes_of({0xd2, 0, 0, 0, 0}),
        bytes_of({0xce, 0xff, 0xff, 0xff, 0xff}), bytes_of({0xcb, 0xff, 0xff, 0xff, 0xff, 1}),
        bytes_of({0x81, 0xff}), bytes_of({0xd1, 1}), bytes_of({1, 1}), bytes_of({0xd3, 1, 0, 0}),
        bytes_of({0xd3, 1, 11, 1, 1}), bytes_of({0xd3, 1, 11, 1, 255, 255, 255, 255, 255, 255, 255, 255})})
    expect_refusal(ErrorCode::bad_handle, {"cannot be read"}, [&] { decode_value(bytes, {}); });
}

TEST(Value, OfPythonThatHasNoPlaceHereIsUnsupported) {
  expect_refusal(ErrorCode::unsupported, {"more than 64 bits"}, [] {
    decode_value(bytes_of({0xc7, 1, 0, 0, 0, 5}), {});
  });
  expect_refusal(ErrorCode::unsupported, {"within itself"}, [] {
    decode_value(bytes_of({0xb1, 0xd2, 0, 0, 0, 0}), {});
  });
}

TEST(PlainFunction, TakesAndGivesValuesAndTensors) {
  Watchdog watchdog;
  Shared<Meeting> meeting;
  Child callee = serve(meeting, [](Agent& agent) {
    agent.define_plain("double", [](const Value::List& arguments) {
      const Tensor& tensor = arguments.at(0).as_tensor();
      auto* elements = tensor.as<std::int64_t>();
      for (std::int64_t i = 0; i < tensor.layout().numel(); ++i) elements[i] *= 2;
      return Value::dict({{"tensor", tensor}, {"text", arguments.at(1)}});
    });
  });
  Agent agent({.name = "caller"});
  meeting->join(agent, 1);
  const Value back = agent.call_plain("callee", "double", {testing::numbers(10, 1), "text"});
  EXPECT_EQ(testing::last_of(back.as_dict().at(0).second.as_tensor()), 20);
  EXPECT_EQ(back.as_dict().at(1).second.as_text(), "text");
  expect_refusal(ErrorCode::invalid_argument, {"On callee: ", "a tensor is wanted"},
                 [&] { agent.call_plain("callee", "double", {1}); });
  expect_refusal(ErrorCode::invalid_argument, {"call it with call_plain()"},
                 [&] { agent.call("callee", "double"); });
  expect_refusal(ErrorCode::invalid_argument, {"define_plain()"},
                 [&] { agent.call_plain("callee", "echo"); });
  meeting->step = 1;
  EXPECT_EQ(callee.join(), 0);
}

TEST(Value, HoldsEachIntegerOf64BitsAndRefusesLargerOnes) {
  using Signed = std::numeric_limits<std::int64_t>;
  EXPECT_EQ(Value(Signed::max()).as_int(), Signed::max());
  EXPECT_EQ(Value(Signed::min()).as_int(), Signed::min());
  EXPECT_EQ(Value(std::uint64_t{Signed::max()}).as_int(), Signed::max());
  EXPECT_EQ(Value(std::uint8_t{255}).as_int(), 255);
  EXPECT_EQ(Value(-1).as_int(), -1);
  for (const std::uint64_t large : {std::uint64_t{1} << 63, std::numeric_limits<std::uint64_t>::max()})
    testing::expect_refusal(ErrorCode::unsupported, {"2^63 - 1"}, [&] { Value value(large); });
}

}  // namespace
}  // namespace onecopy::rpc
