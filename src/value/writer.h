// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

#include "onecopy/core/bytes.h"
#include "onecopy/core/layout.h"
#include "value/tags.h"

namespace onecopy::value {

/// Appends values to bytes, each in the shortest form that fits. The caller walks over the values and numbers the
/// objects, to which again() refers.
/// Thread safety: a writer belongs to one thread.
class Writer {
 public:
  explicit Writer(Bytes& out) noexcept : out_(out) {}

  void none() { tag(kNone); }
  void boolean(bool truth) { tag(truth ? kTrue : kFalse); }
  void integer(std::int64_t number) {
    if (number >= 0 && number < kShortStr) return tag(static_cast<std::size_t>(number));
    if (std::in_range<std::int8_t>(number)) return put(kInt8, static_cast<std::int8_t>(number));
    if (std::in_range<std::int16_t>(number)) return put(kInt16, static_cast<std::int16_t>(number));
    if (std::in_range<std::int32_t>(number)) return put(kInt32, static_cast<std::int32_t>(number));
    put(kInt64, number);
  }
  /// Appends an integer. `bytes` are its two's complement, little endian.
  void long_integer(ByteSpan bytes) {
    put(kLongInt, static_cast<std::uint32_t>(bytes.size()));
    append(bytes);
  }
  void real(double number) { put(kFloat, number); }
  void complex(double real, double imaginary) {
    put(kComplex, real);
    put(imaginary);
  }

  /// Returns whether a str or bytes of that size is an object with a number.
  static constexpr bool is_numbered(std::size_t size) noexcept { return size > UINT8_MAX; }
  /// Appends a str. REQUIRES: valid UTF-8 of less than 4 GiB.
  void text(std::string_view utf8) {
    if (utf8.size() <= kMaxShortText) tag(kShortStr | utf8.size());
    else sized(kStr, kLongStr, utf8.size());
    append(std::as_bytes(std::span(utf8)));
  }
  /// Appends bytes. REQUIRES: less than 4 GiB.
  void bytes(ByteSpan bytes) {
    sized(kBytes, kLongBytes, bytes.size());
    append(bytes);
  }

  // The following functions begin a tuple, list or dict, whose items follow.
  void tuple(std::size_t count) { counted(kShortTuple, kMaxShortTuple, kTuple, count); }
  void list(std::size_t count) { counted(kShortList, kMaxShortItems, kList, count); }
  void dict(std::size_t count) { counted(kShortDict, kMaxShortItems, kDict, count); }
  /// Begins an object made of parts, which follow. REQUIRES: a kind of at most 255 bytes.
  void object(std::string_view kind, std::size_t parts) {
    put(kObject, static_cast<std::uint8_t>(kind.size()));
    append(std::as_bytes(std::span(kind)));
    put(static_cast<std::uint32_t>(parts));
  }

  /// Appends a reference to the message's next tensor.
  void tensor(std::uint8_t flags) { put(kTensor, flags); }
  void card_tensor(std::uint8_t flags, std::uint8_t card) {
    put(kCardTensor, flags);
    put(card);
  }
  void inline_tensor(std::uint8_t flags, const Layout& layout, const std::byte* elements) {
    put(kInlineTensor, flags);
    put(static_cast<std::uint8_t>(layout.dtype()));
    put(static_cast<std::uint8_t>(layout.ndim()));
    for (const std::int64_t size : layout.shape()) put(size);
    append({elements, layout.nbytes()});
  }
  void again(std::uint32_t number) { put(kAgain, number); }

 private:
  void tag(std::size_t byte) { out_.push_back(static_cast<std::byte>(byte)); }
  void append(ByteSpan bytes) { out_.insert(out_.end(), bytes.begin(), bytes.end()); }
  template <class T>
  void put(T number) {
    const std::size_t at = out_.size();
    out_.resize(at + sizeof number);
    write_value(out_.data() + at, number);
  }
  template <class T>
  void put(Tag tag, T number) {
    const std::size_t at = out_.size();
    out_.resize(at + 1 + sizeof number);
    out_[at] = static_cast<std::byte>(tag);
    write_value(out_.data() + at + 1, number);
  }
  void sized(Tag small, Tag large, std::size_t size) {
    if (is_numbered(size)) put(large, static_cast<std::uint32_t>(size));
    else put(small, static_cast<std::uint8_t>(size));
  }
  void counted(Tag small, std::size_t max_small, Tag large, std::size_t count) {
    if (count <= max_small) tag(small | count);
    else put(large, static_cast<std::uint32_t>(count));
  }

  Bytes& out_;
};

}  // namespace onecopy::value
