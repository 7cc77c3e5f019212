// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstring>
#include <optional>
#include <utility>

#include "core/utf8.h"
#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "rpc/value_codec.h"
#include "rpc/value_tags.h"

namespace onecopy::rpc {
namespace {

[[noreturn]] void refuse(const std::string& problem) {
  throw Error(ErrorCode::bad_handle, fmt::format("a value of another process cannot be read: {}", problem));
}

[[noreturn]] void refuse_kind(const char* what) {
  throw Error(ErrorCode::unsupported, fmt::format("a program in C++ cannot take {}", what));
}

/// One call of decode_value().
class Decoder {
 public:
  Decoder(ByteSpan data, std::span<const Tensor> tensors) : rest_(data), tensors_(tensors) {}

  Value read(int depth);
  void check_end() const {
    if (!rest_.empty()) refuse(fmt::format("{} bytes follow it", rest_.size()));
    if (!tensors_.empty()) refuse(fmt::format("nothing refers to {} of its tensors", tensors_.size()));
  }

 private:
  Value read_number(ValueTag tag);
  Value read_long(ValueTag tag, int depth);
  Value read_text(std::size_t size);
  Value read_bytes(std::size_t size);
  Value::List read_items(std::size_t count, int depth);
  Value read_list(std::size_t count, int depth);
  Value read_tuple(std::size_t count, int depth);
  Value read_dict(std::size_t count, int depth);
  Value read_tensor();
  Value read_inline();
  Value read_again();

  ByteSpan take(std::size_t size) {
    if (rest_.size() < size) refuse("it is cut off");
    const ByteSpan taken = rest_.first(size);
    rest_ = rest_.subspan(size);
    return taken;
  }
  template <class T>
  T number() {
    return load<T>(take(sizeof(T)).data());
  }
  /// REQUIRES: every item takes `bytes` at least. Nothing large is made for a length that lies.
  void check_count(std::size_t count, std::size_t bytes, int depth) const {
    if (count > rest_.size() / bytes) refuse("a container is longer than the message");
    if (depth == kMostDeep) refuse("it is nested too deeply");
  }
  std::size_t begin_numbered() {
    numbered_.emplace_back();
    return numbered_.size() - 1;
  }
  Value numbered(Value value) {
    numbered_.emplace_back(value);
    return value;
  }

  ByteSpan rest_;
  std::span<const Tensor> tensors_;
  std::vector<std::optional<Value>> numbered_;  ///< none: a container that is not complete yet
};

Value Decoder::read(int depth) {
  const auto byte = number<std::uint8_t>();
  if (byte < kShortStr) return byte;
  if (byte < kShortTuple) return read_text(byte - kShortStr);
  if (byte < kShortList) return read_tuple(byte - kShortTuple, depth);
  if (byte < kShortDict) return read_list(byte - kShortList, depth);
  if (byte < kNone) return read_dict(byte - kShortDict, depth);
  return byte < kStr ? read_number(static_cast<ValueTag>(byte))
                     : read_long(static_cast<ValueTag>(byte), depth);
}

Value Decoder::read_number(ValueTag tag) {
  switch (tag) {
    case kNone: return {};
    case kFalse: return false;
    case kTrue: return true;
    case kInt8: return number<std::int8_t>();
    case kInt16: return number<std::int16_t>();
    case kInt32: return number<std::int32_t>();
    case kInt64: return number<std::int64_t>();
    case kFloat: return number<double>();
    case kComplex: {
      const auto real = number<double>();
      return std::complex<double>(real, number<double>());
    }
    default: take(number<std::uint32_t>()); refuse_kind("an int of more than 64 bits");
  }
}

Value Decoder::read_long(ValueTag tag, int depth) {
  switch (tag) {
    case kStr: return read_text(number<std::uint8_t>());
    case kLongStr: return numbered(read_text(number<std::uint32_t>()));
    case kBytes: return read_bytes(number<std::uint8_t>());
    case kLongBytes: return numbered(read_bytes(number<std::uint32_t>()));
    case kTuple: return read_tuple(number<std::uint32_t>(), depth);
    case kList: return read_list(number<std::uint32_t>(), depth);
    case kDict: return read_dict(number<std::uint32_t>(), depth);
    case kTensor: return read_tensor();
    case kInlineTensor: return read_inline();
    case kAgain: return read_again();
    default: refuse(fmt::format("its byte {:#04x} means nothing", static_cast<unsigned>(tag)));
  }
}

Value Decoder::read_text(std::size_t size) {
  const ByteSpan bytes = take(size);
  std::string text(reinterpret_cast<const char*>(bytes.data()), size);
  if (!is_utf8(text)) refuse("a str is not UTF-8");
  return text;
}

Value Decoder::read_bytes(std::size_t size) {
  const ByteSpan bytes = take(size);
  return Value::bytes({bytes.begin(), bytes.end()});
}

Value::List Decoder::read_items(std::size_t count, int depth) {
  check_count(count, 1, depth);
  Value::List items;
  for (std::size_t i = 0; i < count; ++i) items.push_back(read(depth + 1));
  return items;
}

Value Decoder::read_list(std::size_t count, int depth) {
  const std::size_t at = begin_numbered();
  return *(numbered_[at] = Value::list(read_items(count, depth)));
}

Value Decoder::read_tuple(std::size_t count, int depth) {
  const std::size_t at = begin_numbered();
  return *(numbered_[at] = Value::tuple(read_items(count, depth)));
}

Value Decoder::read_dict(std::size_t count, int depth) {
  const std::size_t at = begin_numbered();
  check_count(count, 2, depth);
  Value::Dict items;
  for (std::size_t i = 0; i < count; ++i) {
    Value key = read(depth + 1);
    items.emplace_back(std::move(key), read(depth + 1));
  }
  return *(numbered_[at] = Value::dict(std::move(items)));
}

Value Decoder::read_tensor() {
  const auto flags = number<std::uint8_t>();
  if (tensors_.empty()) refuse("it has fewer tensors than it refers to");
  if ((flags & ~kHarmlessFlags) != 0)
    refuse_kind("a tensor that is conjugate or negative by a flag, or a numpy array");
  const Tensor& tensor = tensors_.front();
  tensors_ = tensors_.subspan(1);
  return numbered(tensor);
}

/// Layout checks dtype and shape, and take() that the elements are there.
Value Decoder::read_inline() {
  const auto dtype = static_cast<DType>(number<std::uint8_t>());
  const auto ndim = number<std::uint8_t>();
  if (!is_valid(dtype)) refuse("a tensor has an unknown dtype");
  const ByteSpan sizes = take(ndim * sizeof(std::int64_t));
  std::vector<std::int64_t> shape(ndim);
  if (ndim != 0) std::memcpy(shape.data(), sizes.data(), sizes.size());
  std::optional<Layout> layout;
  try {
    layout.emplace(dtype, shape);
  } catch (const Error&) {
    refuse("a tensor has an impossible shape");
  }
  const ByteSpan elements = take(layout->nbytes());
  Tensor tensor = empty(*layout);
  if (!elements.empty()) std::memcpy(tensor.data(), elements.data(), elements.size());
  return numbered(std::move(tensor));
}

Value Decoder::read_again() {
  const auto before = number<std::uint32_t>();
  if (before >= numbered_.size()) refuse("it refers to an object that is not there");
  if (!numbered_[before]) refuse_kind("a container within itself");
  return *numbered_[before];
}

}  // namespace

Value decode_value(ByteSpan data, std::span<const Tensor> tensors) {
  Decoder decoder(data, tensors);
  Value value = decoder.read(0);
  decoder.check_end();
  return value;
}

}  // namespace onecopy::rpc
