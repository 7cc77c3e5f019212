// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "onecopy/core/bytes.h"
#include "onecopy/core/error.h"

/// The encoding of messages, records and tables: one field after another, with the length before a text or list. A
/// struct names its fields once, in fields(), for both directions. The bytes are read on the host that wrote them.
namespace onecopy {

template <class T>
concept PlainField = std::is_arithmetic_v<T> || std::is_enum_v<T>;

/// Appends fields to bytes. Thread safety: none.
class FieldWriter {
 public:
  FieldWriter() { bytes_.reserve(kUsually); }

  template <class... Fields>
  void operator()(const Fields&... fields) {
    (put(fields), ...);
  }
  Bytes take() noexcept { return std::move(bytes_); }

 private:
  static constexpr std::size_t kUsually = 64;

  void append(const void* at, std::size_t size) {
    const auto* const from = static_cast<const std::byte*>(at);
    bytes_.insert(bytes_.end(), from, from + size);
  }
  template <PlainField T>
  void put(const T& value) {
    append(&value, sizeof value);
  }
  template <PlainField T, std::size_t size>
  void put(const std::array<T, size>& values) {
    append(values.data(), sizeof values);
  }
  void put(const std::string& text) {
    put(static_cast<std::uint32_t>(text.size()));
    append(text.data(), text.size());
  }
  void put(const Bytes& bytes) {
    put(static_cast<std::uint32_t>(bytes.size()));
    append(bytes.data(), bytes.size());
  }
  template <class T>
  void put(const std::vector<T>& items) {
    put(static_cast<std::uint32_t>(items.size()));
    for (const T& item : items) put(item);
  }
  void put(const std::map<std::string, std::string>& pairs) {
    put(static_cast<std::uint32_t>(pairs.size()));
    for (const auto& [name, value] : pairs) (*this)(name, value);
  }
  template <class T>
  requires requires(T& t, FieldWriter& e) { t.fields(e); }
  void put(const T& item) {
    const_cast<T&>(item).fields(*this);  // fields() only reads them
  }

  Bytes bytes_;
};

/// Reads what a FieldWriter wrote, from bytes that need not be valid. Throws an Error with the given code. Thread safety:
/// none.
class FieldReader {
 public:
  FieldReader(ByteSpan bytes, ErrorCode code, const char* what) noexcept
      : rest_(bytes), code_(code), what_(what) {}

  template <class... Fields>
  void operator()(Fields&... fields) {
    (get(fields), ...);
  }
  ByteSpan take(std::size_t size) {
    if (rest_.size() < size) refuse("is cut off");
    const ByteSpan taken = rest_.first(size);
    rest_ = rest_.subspan(size);
    return taken;
  }
  std::size_t left() const noexcept { return rest_.size(); }
  /// Throws if bytes are left over.
  void end() const {
    if (!rest_.empty()) refuse("has " + std::to_string(rest_.size()) + " bytes too many");
  }
  [[noreturn]] void refuse(const std::string& problem) const {
    throw Error(code_, std::string(what_) + " " + problem);
  }

 private:
  template <PlainField T>
  void get(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      const auto byte = load<std::uint8_t>(take(1).data());
      if (byte > 1) refuse("holds a byte that is neither true nor false");
      value = byte == 1;
    } else {
      value = load<T>(take(sizeof value).data());
    }
  }
  template <PlainField T, std::size_t size>
  void get(std::array<T, size>& values) {
    std::memcpy(values.data(), take(sizeof values).data(), sizeof values);
  }
  void get(std::string& text) {
    const ByteSpan bytes = take(count(1));
    text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  void get(Bytes& bytes) {
    const ByteSpan taken = take(count(1));
    bytes.assign(taken.begin(), taken.end());
  }
  template <class T>
  void get(std::vector<T>& items) {
    items.resize(count(sizeof(std::uint32_t)));  // the encoded length of an item is at least this
    for (T& item : items) get(item);
  }
  void get(std::map<std::string, std::string>& pairs) {
    for (std::size_t left = count(2 * sizeof(std::uint32_t)); left != 0; --left) {
      std::string name;
      get(name);
      get(pairs[name]);
    }
  }
  template <class T>
  requires requires(T& t, FieldReader& d) { t.fields(d); }
  void get(T& item) { item.fields(*this); }
  /// Reads the number of items. Refuses one for which too few bytes are left, so that a false number allocates no
  /// memory. REQUIRES: every item takes at least `bytes`.
  std::size_t count(std::size_t bytes) {
    std::uint32_t size = 0;
    get(size);
    if (size > rest_.size() / bytes) refuse("is cut off");
    return size;
  }

  ByteSpan rest_;
  const ErrorCode code_;
  const char* const what_;
};

template <class T>
Bytes write_fields(const T& item) {
  FieldWriter writer;
  writer(item);
  return writer.take();
}

template <class T>
T read_fields(ByteSpan bytes, ErrorCode code, const char* what) {
  FieldReader reader(bytes, code, what);
  T item;
  reader(item);
  reader.end();
  return item;
}

}  // namespace onecopy
