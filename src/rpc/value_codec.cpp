// SPDX-License-Identifier: Apache-2.0
#include "rpc/value_codec.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "core/throw_error.h"
#include "core/utf8.h"
#include "onecopy/share/share.h"
#include "value/reader.h"
#include "value/writer.h"

namespace onecopy::rpc {
namespace {

bool is_container(Value::Kind kind) noexcept {
  return kind == Value::Kind::list || kind == Value::Kind::tuple || kind == Value::Kind::dict;
}

/// A walk over one value, which recognises objects by their addresses.
class ValueWalk {
 public:
  ValueWalk(Message& message, std::uint8_t tensor_flags)
      : message_(message), out_(message.data), tensor_flags_(tensor_flags) {}

  void write(const Value& value, int depth);

 private:
  void write_text(const std::string& text);
  void write_bytes(const Bytes& bytes);
  void write_items(const Value::List& items, int depth) {
    for (const Value& item : items) write(item, depth + 1);
  }
  void write_dict(const Value::Dict& dict, int depth);
  void write_tensor(const Tensor& tensor);
  bool is_again(const void* object);

  Message& message_;
  value::Writer out_;
  const std::uint8_t tensor_flags_;
  std::map<const void*, std::uint32_t> seen_;
  std::uint32_t numbered_ = 0;
};

void ValueWalk::write(const Value& value, int depth) {
  using Kind = Value::Kind;
  if (depth == value::kMaxDepth && is_container(value.kind()))
    throw Error(ErrorCode::invalid_argument, "a value is nested more than 32 deep: send it flat");
  switch (value.kind()) {
    case Kind::none: return out_.none();
    case Kind::boolean: return out_.boolean(value.as_bool());
    case Kind::integer: return out_.integer(value.as_int());
    case Kind::real: return out_.real(value.as_double());
    case Kind::complex: return out_.complex(value.as_complex().real(), value.as_complex().imag());
    case Kind::text: return write_text(value.as_text());
    case Kind::bytes: return write_bytes(value.as_bytes());
    case Kind::list:
      if (is_again(&value.as_list())) return;
      out_.list(value.as_list().size());
      return write_items(value.as_list(), depth);
    case Kind::tuple:
      if (is_again(&value.as_list())) return;
      out_.tuple(value.as_list().size());
      return write_items(value.as_list(), depth);
    case Kind::dict: return write_dict(value.as_dict(), depth);
    case Kind::tensor: return write_tensor(value.as_tensor());
    case Kind::foreign:
      throw Error(
          ErrorCode::invalid_argument,
          "a value that only Python understands can be sent by itself only: call to_message() with it");
  }
}

void ValueWalk::write_text(const std::string& text) {
  if (!is_utf8(text)) throw Error(ErrorCode::invalid_argument, "a text is not UTF-8: send it as bytes");
  if (!out_.is_numbered(text.size()) || !is_again(&text)) out_.text(text);
}

void ValueWalk::write_bytes(const Bytes& bytes) {
  if (!out_.is_numbered(bytes.size()) || !is_again(&bytes)) out_.bytes(bytes);
}

void ValueWalk::write_dict(const Value::Dict& dict, int depth) {
  if (is_again(&dict)) return;
  out_.dict(dict.size());
  for (const auto& [key, value] : dict) {
    write(key, depth + 1);
    write(value, depth + 1);
  }
}

/// Writes a tensor, which the receiver gets on the sender's memory.
void ValueWalk::write_tensor(const Tensor& tensor) {
  message_.tensors.push_back(tensor);
  ++numbered_;
  out_.tensor(tensor_flags_);
}

/// Gives the object a number. If the object has been written before, writes a reference to it and returns true.
bool ValueWalk::is_again(const void* object) {
  const auto [at, is_new] = seen_.try_emplace(object, numbered_);
  if (is_new) return ++numbered_, false;
  out_.again(at->second);
  return true;
}

[[noreturn]] void refuse_kind(const std::string& what) {
  throw_error(ErrorCode::unsupported, "a program in C++ cannot take {}", what);
}

/// A sink that makes rpc values of what value::Reader reads.
class ValueSink {
 public:
  using Object = Value;

  ValueSink(std::span<const Tensor> tensors, std::uint8_t tensor_flags)
      : tensors_(tensors), tensor_flags_(tensor_flags) {}

  Value none() { return {}; }
  Value boolean(bool truth) { return truth; }
  Value integer(std::int64_t number) { return number; }
  [[noreturn]] Value long_integer(ByteSpan) { refuse_kind("an int of more than 64 bits"); }
  Value real(double number) { return number; }
  Value complex(double real, double imaginary) { return std::complex<double>(real, imaginary); }
  Value text(ByteSpan bytes) {
    std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (!is_utf8(text)) value::refuse("a str is not UTF-8");
    return text;
  }
  Value bytes(ByteSpan bytes) { return Value::bytes({bytes.begin(), bytes.end()}); }

  Value tensor(std::size_t index, std::uint8_t flags) {
    if (flags == value::kBytesRow) return bytes(row(tensors_[index]));
    if (flags == value::kTextRow) return text(row(tensors_[index]));
    check(flags);
    return tensors_[index];
  }
  [[noreturn]] Value card_tensor(std::size_t, std::uint8_t, std::uint8_t) {
    value::refuse("a tensor of a card came to a program in C++");
  }
  Value inline_tensor(std::uint8_t flags, const Layout& layout, ByteSpan elements) {
    check(flags);
    Tensor tensor = empty(layout);
    if (!elements.empty()) std::memcpy(tensor.data(), elements.data(), elements.size());
    return tensor;
  }

  template <class Next>
  Value tuple(std::size_t count, Next&& next) {
    return Value::tuple(items(count, next));
  }
  template <class Next, class Begun>
  Value list(std::size_t count, Next&& next, Begun&&) {
    return Value::list(items(count, next));
  }
  template <class Next, class Begun>
  Value dict(std::size_t count, Next&& next, Begun&&) {
    Value::Dict pairs;
    for (std::size_t i = 0; i < count; ++i) {
      Value key = next();
      pairs.emplace_back(std::move(key), next());
    }
    return Value::dict(std::move(pairs));
  }
  template <class Next>
  [[noreturn]] Value object(std::string_view kind, std::size_t, Next&&) {
    refuse_kind(fmt::format("an object of Python's (its kind is \"{}\")", is_utf8(kind) ? kind : "?"));
  }
  [[noreturn]] Value unfinished() { refuse_kind("a container within itself"); }

 private:
  void check(std::uint8_t flags) const {
    if ((flags & ~tensor_flags_) != 0)
      refuse_kind("a tensor that is conjugate or negative by a flag, a bytearray, or a numpy array");
  }
  static ByteSpan row(const Tensor& tensor) {
    if (tensor.device() != kCpu || !value::is_row(tensor.layout())) value::refuse("bytes are not in a row");
    return {tensor.as<const std::byte>(), tensor.nbytes()};
  }
  template <class Next>
  static Value::List items(std::size_t count, Next& next) {
    Value::List items;
    for (std::size_t i = 0; i < count; ++i) items.push_back(next());
    return items;
  }

  std::span<const Tensor> tensors_;
  const std::uint8_t tensor_flags_;
};

}  // namespace

void encode_value(const Value& value, Message& message, std::uint8_t tensor_flags) {
  ValueWalk(message, tensor_flags).write(value, 0);
  if (message.data.size() > std::numeric_limits<std::uint32_t>::max())
    throw Error(ErrorCode::invalid_argument, "a value of 4 GiB and more cannot be sent: send tensors");
}

Value decode_value(ByteSpan data, std::span<const Tensor> tensors, std::uint8_t tensor_flags) {
  ValueSink sink(tensors, tensor_flags);
  return value::Reader(data, tensors.size(), sink).read_all();
}

}  // namespace onecopy::rpc
