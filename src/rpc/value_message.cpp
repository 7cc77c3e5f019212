// SPDX-License-Identifier: Apache-2.0
#include "onecopy/rpc/value_message.h"

#include "core/throw_error.h"
#include "rpc/value_codec.h"
#include "value/tags.h"

namespace onecopy::rpc {
namespace {

constexpr const char* kPickle = "pickle";
constexpr std::uint8_t kTensorFlags = value::kHarmlessFlags | value::kNumpyArray;

[[noreturn]] void refuse(const char* problem) {
  throw_error(ErrorCode::bad_handle, "the message of a Python program is malformed: {}", problem);
}

/// The data and the tensors of a message; large data lies in its last tensor.
struct Contents {
  ByteSpan data;
  std::span<const Tensor> tensors;
};

Contents contents_of(const Message& message) {
  const std::span<const Tensor> tensors = message.tensors;
  if ((message.tag & value::kDataIsTensor) == 0) return {message.data, tensors};
  if (tensors.empty() || !message.data.empty()) refuse("its data is not where it should be");
  const Tensor& data = tensors.back();
  if (data.dtype() != DType::u8 || data.device() != kCpu || !data.layout().is_contiguous())
    refuse("its data is not a row of bytes of the host");
  return {{data.as<const std::byte>(), data.nbytes()}, tensors.first(tensors.size() - 1)};
}

Value tensor_of(const Message& message) {
  if (message.tensors.size() != 1 || !message.data.empty()) refuse("it should be one tensor");
  if ((message.tag >> value::kFlagsShift & ~std::uint32_t{kTensorFlags}) != 0)
    throw Error(ErrorCode::unsupported,
                "a program in C++ cannot take a tensor that torch has conjugated or negated lazily: send "
                "tensor.resolve_conj().resolve_neg()");
  return message.tensors.front();
}

Value value_of_user(const Message& message) {
  if (message.tag == 0 && message.data.empty() && message.tensors.size() == 1)
    return message.tensors.front();
  throw_error(ErrorCode::unsupported,
              "this message (tag {:#x}, {} bytes, {} tensors) was put by a program in C++ and is not "
              "a value: read its tag, data and tensors",
              message.tag, message.data.size(), message.tensors.size());
}

}  // namespace

Value from_message(const Message& message) {
  if (message.kind == MessageKind::user) return value_of_user(message);
  if (message.kind != MessageKind::python) refuse("it is of another kind");
  const auto [data, tensors] = contents_of(message);
  const std::uint32_t form = message.tag & value::kFormMask;
  if (form == value::kTensorForm) return tensor_of(message);
  if (message.tag >> value::kFlagsShift != 0) refuse("its tag is unknown");
  switch (form) {
    case value::kValuesForm: return decode_value(data, tensors, kTensorFlags);
    case value::kPickleForm:
      return Value::foreign({kPickle, {data.begin(), data.end()}, {tensors.begin(), tensors.end()}});
    default: refuse("its form is unknown");
  }
}

Message to_message(const Value& value) {
  if (value.kind() == Value::Kind::tensor) return {0, {}, {value.as_tensor()}};
  Message message;
  message.kind = MessageKind::python;
  message.tag = value::kValuesForm;
  if (value.kind() != Value::Kind::foreign) return encode_value(value, message, 0), message;
  const Value::Foreign& foreign = value.as_foreign();
  if (foreign.format != kPickle)
    throw_error(ErrorCode::invalid_argument, "Python does not know the format \"{}\"; it knows \"pickle\"",
                foreign.format);
  message.tag = value::kPickleForm;
  message.data = foreign.data;
  message.tensors = foreign.tensors;
  return message;
}

}  // namespace onecopy::rpc
