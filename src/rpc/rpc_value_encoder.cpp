// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <map>
#include <utility>

#include "core/utf8.h"
#include "onecopy/core/error.h"
#include "rpc/message.h"
#include "rpc/value_codec.h"
#include "rpc/value_tags.h"

namespace onecopy::rpc {

namespace {

bool is_container(Value::Kind kind) noexcept {
  return kind == Value::Kind::list || kind == Value::Kind::tuple || kind == Value::Kind::dict;
}

}  // namespace

/// One call of encode_value().
class ValueEncoder {
 public:
  explicit ValueEncoder(Message& message) : message_(message) {}

  void write(const Value& value, int depth);

 private:
  void write_int(std::int64_t number);
  void write_text(const std::string& text);
  void write_bytes(const Bytes& bytes);
  void write_items(ValueTag short_tag, std::size_t most, ValueTag long_tag, const Value::List& items,
                   int depth);
  void write_dict(const Value::Dict& dict, int depth);
  void write_tensor(const Tensor& tensor);
  bool is_again(const void* object);
  void write_count(ValueTag short_tag, std::size_t most, ValueTag long_tag, std::size_t count);

  template <class T>
  void put(const T& number) {
    append_tail(message_.data, number);
  }
  void put_tag(std::size_t tag) { put(static_cast<std::uint8_t>(tag)); }

  Message& message_;
  std::map<const void*, std::uint32_t> seen_;
  std::uint32_t numbered_ = 0;
};

void ValueEncoder::write(const Value& value, int depth) {
  using Kind = Value::Kind;
  if (depth == kMostDeep && is_container(value.kind()))
    throw Error(ErrorCode::invalid_argument, "a value is nested more than 32 deep: send it flat");
  switch (value.kind()) {
    case Kind::none: return put_tag(kNone);
    case Kind::boolean: return put_tag(value.as_bool() ? kTrue : kFalse);
    case Kind::integer: return write_int(value.as_int());
    case Kind::real: return put_tag(kFloat), put(value.as_double());
    case Kind::complex:
      return put_tag(kComplex), put(value.as_complex().real()), put(value.as_complex().imag());
    case Kind::text: return write_text(value.as_text());
    case Kind::bytes: return write_bytes(value.as_bytes());
    case Kind::list: return write_items(kShortList, 8, kList, value.as_list(), depth);
    case Kind::tuple: return write_items(kShortTuple, 16, kTuple, value.as_list(), depth);
    case Kind::dict: return write_dict(value.as_dict(), depth);
    case Kind::tensor: return write_tensor(value.as_tensor());
  }
}

void ValueEncoder::write_int(std::int64_t number) {
  if (number >= 0 && number < kShortStr) return put_tag(static_cast<std::size_t>(number));
  if (std::in_range<std::int8_t>(number)) return put_tag(kInt8), put(static_cast<std::int8_t>(number));
  if (std::in_range<std::int16_t>(number)) return put_tag(kInt16), put(static_cast<std::int16_t>(number));
  if (std::in_range<std::int32_t>(number)) return put_tag(kInt32), put(static_cast<std::int32_t>(number));
  put_tag(kInt64);
  put(number);
}

void ValueEncoder::write_text(const std::string& text) {
  if (!is_utf8(text)) throw Error(ErrorCode::invalid_argument, "a text is not UTF-8: send it as bytes");
  const std::size_t size = text.size();
  if (size < 32) put_tag(kShortStr + size);
  else if (size < 256) put_tag(kStr), put(static_cast<std::uint8_t>(size));
  else if (is_again(&text)) return;
  else put_tag(kLongStr), put(static_cast<std::uint32_t>(size));
  append_name(message_.data, text);
}

void ValueEncoder::write_bytes(const Bytes& bytes) {
  const std::size_t size = bytes.size();
  if (size < 256) put_tag(kBytes), put(static_cast<std::uint8_t>(size));
  else if (is_again(&bytes)) return;
  else put_tag(kLongBytes), put(static_cast<std::uint32_t>(size));
  message_.data.insert(message_.data.end(), bytes.begin(), bytes.end());
}

void ValueEncoder::write_items(ValueTag short_tag, std::size_t most, ValueTag long_tag,
                               const Value::List& items, int depth) {
  if (is_again(&items)) return;
  write_count(short_tag, most, long_tag, items.size());
  for (const Value& item : items) write(item, depth + 1);
}

void ValueEncoder::write_dict(const Value::Dict& dict, int depth) {
  if (is_again(&dict)) return;
  write_count(kShortDict, 8, kDict, dict.size());
  for (const auto& [key, value] : dict) {
    write(key, depth + 1);
    write(value, depth + 1);
  }
}

/// The callee sees the memory of the caller, as a torch tensor.
void ValueEncoder::write_tensor(const Tensor& tensor) {
  message_.tensors.push_back(tensor);
  ++numbered_;
  put_tag(kTensor);
  put(kTorchTensor);
}

/// Numbers the object. True when it has been written before; then so is the reference to it.
bool ValueEncoder::is_again(const void* object) {
  const auto [at, is_new] = seen_.try_emplace(object, numbered_);
  if (is_new) return ++numbered_, false;
  put_tag(kAgain);
  put(at->second);
  return true;
}

void ValueEncoder::write_count(ValueTag short_tag, std::size_t most, ValueTag long_tag, std::size_t count) {
  if (count < most) return put_tag(short_tag + count);
  put_tag(long_tag);
  put(static_cast<std::uint32_t>(count));
}

void encode_value(const Value& value, Message& message) {
  ValueEncoder(message).write(value, 0);
  if (message.data.size() > std::numeric_limits<std::uint32_t>::max())
    throw Error(ErrorCode::invalid_argument, "a value of 4 GiB and more cannot be sent: send tensors");
}

}  // namespace onecopy::rpc
