// SPDX-License-Identifier: Apache-2.0
#include "onecopy/rpc/value_message.h"

#include <gtest/gtest.h>

#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "support/numbers.h"
#include "support/refusal.h"
#include "value/tags.h"

namespace onecopy::rpc {
namespace {

using onecopy::testing::expect_refusal;
using onecopy::testing::number;
using onecopy::testing::number_in;

Bytes bytes_of(std::string_view text) {
  const ByteSpan bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

Value through_a_queue(const Value& value) {
  Queue queue = Queue::create();
  queue.put(to_message(value));
  return from_message(queue.get());
}

TEST(ValueMessage, CarriesPlainValuesThroughAQueue) {
  const Value sent = Value::dict(
      {{"step", 7}, {"loss", Value::list({0.5, Value(), true})}, {1, Value::bytes(bytes_of("x"))}});
  const Value::Dict got = through_a_queue(sent).as_dict();
  ASSERT_EQ(got.size(), 3u);
  EXPECT_EQ(got[0].first.as_text(), "step");
  EXPECT_EQ(got[0].second.as_int(), 7);
  EXPECT_EQ(got[1].second.as_list()[0].as_double(), 0.5);
  EXPECT_EQ(got[1].second.as_list()[1].kind(), Value::Kind::none);
  EXPECT_TRUE(got[1].second.as_list()[2].as_bool());
  EXPECT_EQ(got[2].second.as_bytes(), bytes_of("x"));
}

TEST(ValueMessage, CarriesTensorsWithoutACopy) {
  const Tensor alone = number(7), within = number(8);
  EXPECT_EQ(through_a_queue(alone).as_tensor().data(), alone.data());
  const Value got = through_a_queue(Value::tuple({"w", within}));
  EXPECT_EQ(got.as_list()[1].as_tensor().data(), within.data());
}

TEST(ValueMessage, GivesAValueThatOnlyPythonUnderstandsAsNamedBytes) {
  Message pickled{value::kPickleForm, bytes_of("a pickle"), {number(3)}, MessageKind::python};
  const Value got = from_message(pickled);
  ASSERT_EQ(got.kind(), Value::Kind::foreign);
  EXPECT_EQ(got.as_foreign().format, "pickle");
  EXPECT_EQ(got.as_foreign().data, pickled.data);
  EXPECT_EQ(number_in(got.as_foreign().tensors.at(0)), 3);
  const Message again = to_message(got);
  EXPECT_EQ(again.tag, pickled.tag);
  EXPECT_EQ(again.data, pickled.data);
  EXPECT_EQ(again.kind, MessageKind::python);
  EXPECT_EQ(again.tensors.size(), 1u);
}

TEST(ValueMessage, ReadsLargeDataFromTheLastTensor) {
  const Bytes pickle(40'000, std::byte{5});
  const Tensor data = empty(Layout(DType::u8, {40'000}));
  std::copy(pickle.begin(), pickle.end(), data.as<std::byte>());
  const Value got =
      from_message({value::kPickleForm | value::kDataIsTensor, {}, {number(3), data}, MessageKind::python});
  EXPECT_EQ(got.as_foreign().data, pickle);
  EXPECT_EQ(got.as_foreign().tensors.size(), 1u);
}

TEST(ValueMessage, TakesTensorsOfTorchAndNumpy) {
  for (const std::uint32_t flags : {1, 3, 32}) {
    const Message message{
        value::kTensorForm | flags << value::kFlagsShift, {}, {number(4)}, MessageKind::python};
    EXPECT_EQ(number_in(from_message(message).as_tensor()), 4);
  }
  expect_refusal(ErrorCode::unsupported, {"resolve_conj"}, [] {
    from_message({value::kTensorForm | 9u << value::kFlagsShift, {}, {number(4)}, MessageKind::python});
  });
}

TEST(ValueMessage, RefusesMessagesThatAreNoValues) {
  expect_refusal(ErrorCode::unsupported, {"tag 0x5", "3 bytes"}, [] { from_message({5, Bytes(3), {}}); });
  for (const Message& malformed :
       {Message{value::kTensorForm, {}, {}, MessageKind::python},
        Message{value::kValuesForm, bytes_of("\xff"), {}, MessageKind::python},
        Message{value::kValuesForm | 1u << value::kFlagsShift, Bytes(1), {}, MessageKind::python},
        Message{value::kPickleForm | value::kDataIsTensor, {}, {number(1)}, MessageKind::python},
        Message{7, {}, {}, MessageKind::python}, Message{0, {}, {}, MessageKind::rpc}})
    expect_refusal(ErrorCode::bad_handle, {}, [&] { from_message(malformed); });
}

TEST(ValueMessage, RefusesAForeignValueInsideAnotherOneOrOfAnotherFormat) {
  const Value foreign = Value::foreign({"pickle", Bytes(1), {}});
  expect_refusal(ErrorCode::invalid_argument, {"by itself"}, [&] { to_message(Value::list({foreign})); });
  expect_refusal(ErrorCode::invalid_argument, {"\"msgpack\"", "\"pickle\""}, [] {
    to_message(Value::foreign({"msgpack", {}, {}}));
  });
}

}  // namespace
}  // namespace onecopy::rpc
