// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <complex>
#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "onecopy/core/api.h"
#include "onecopy/core/bytes.h"
#include "onecopy/core/error.h"
#include "onecopy/memory/tensor.h"

ONECOPY_API_BEGIN
namespace onecopy::rpc {

/// A plain value of Python, for calls and messages between programs in C++ and in Python. Copies are cheap because they share their
/// parts, which never change. Thread safety: as a value.
class Value {
 public:
  enum class Kind : std::uint8_t {
    none,
    boolean,
    integer,
    real,
    complex,
    text,
    bytes,
    list,
    tuple,
    dict,
    tensor,
    foreign
  };
  using List = std::vector<Value>;
  using Dict = std::vector<std::pair<Value, Value>>;  ///< in the order in which the keys were added
  /// A value that only Python understands, as named bytes, for passing on: to_message() sends it unchanged.
  struct Foreign {
    std::string format;  ///< the name of the bytes' format: "pickle"
    Bytes data;
    std::vector<Tensor> tensors;  ///< tensors in the value, which lie beside its bytes
  };

  Value() = default;
  Value(std::same_as<bool> auto truth) : value_(truth) {}
  /// Throws unsupported for a number that is not from -2^63 to 2^63 - 1.
  template <std::integral Integer>
  requires(!std::same_as<Integer, bool>) Value(Integer number) : value_(static_cast<std::int64_t>(number)) {
    const auto kept = static_cast<std::int64_t>(number);
    if (static_cast<Integer>(kept) != number || (std::unsigned_integral<Integer> && kept < 0))
      refuse_integer();
  }
  Value(double number) : value_(number) {}
  Value(std::complex<double> number) : value_(number) {}
  Value(std::string text) : value_(std::make_shared<const std::string>(std::move(text))) {}
  Value(const char* text) : Value(std::string(text)) {}
  Value(Tensor tensor) : value_(std::move(tensor)) {}
  static Value bytes(Bytes bytes);
  static Value list(List items);
  static Value tuple(List items);
  static Value dict(Dict items);
  static Value foreign(Foreign foreign);

  Kind kind() const noexcept { return static_cast<Kind>(value_.index()); }

  // Each of these throws invalid_argument for a value of another kind and names that kind.
  bool as_bool() const;
  std::int64_t as_int() const;
  double as_double() const;  ///< accepts an integer as well
  std::complex<double> as_complex() const;
  const std::string& as_text() const;
  const Bytes& as_bytes() const;
  const List& as_list() const;  ///< accepts a tuple as well
  const Dict& as_dict() const;
  const Tensor& as_tensor() const;
  const Foreign& as_foreign() const;

 private:
  template <class T>
  using Shared = std::shared_ptr<const T>;  ///< shared by all copies of the value
  struct TupleItems {
    List items;
  };

  [[noreturn]] static void refuse_integer();
  template <class T>
  static Value of(T content);
  template <class T>
  const T& get(const char* wanted) const;

  std::variant<std::monostate, bool, std::int64_t, double, std::complex<double>, Shared<std::string>,
               Shared<Bytes>, Shared<List>, Shared<TupleItems>, Shared<Dict>, Tensor, Shared<Foreign>>
      value_;
};

/// Returns the kind with an article, e.g. "a list", for error texts.
const char* name(Value::Kind kind) noexcept;

}  // namespace onecopy::rpc
ONECOPY_API_END
