// SPDX-License-Identifier: Apache-2.0
#include "onecopy/rpc/value.h"
#include "core/throw_error.h"

#include <array>

namespace onecopy::rpc {
namespace {

constexpr std::array<const char*, 12> kNames{
    "None",  "a bool", "an int",  "a float", "a complex", "a str",
    "bytes", "a list", "a tuple", "a dict",  "a tensor",  "a value that only Python understands"};

}  // namespace

const char* name(Value::Kind kind) noexcept { return kNames[static_cast<std::size_t>(kind)]; }

void Value::refuse_integer() {
  throw Error(
      ErrorCode::unsupported,
      "an integer of a Value is from -2^63 to 2^63 - 1: send a larger one as a text or as a tensor");
}

template <class T>
Value Value::of(T content) {
  Value value;
  value.value_ = std::make_shared<const T>(std::move(content));
  return value;
}

Value Value::bytes(Bytes bytes) { return of(std::move(bytes)); }
Value Value::list(List items) { return of(std::move(items)); }
Value Value::tuple(List items) { return of(TupleItems{std::move(items)}); }
Value Value::dict(Dict items) { return of(std::move(items)); }
Value Value::foreign(Foreign foreign) { return of(std::move(foreign)); }

template <class T>
const T& Value::get(const char* wanted) const {
  if (const T* const found = std::get_if<T>(&value_)) return *found;
  throw_error(ErrorCode::invalid_argument, "{} is wanted, and this value is {}", wanted, name(kind()));
}

bool Value::as_bool() const { return get<bool>("a bool"); }

std::int64_t Value::as_int() const { return get<std::int64_t>("an int"); }

double Value::as_double() const {
  return kind() == Kind::integer ? static_cast<double>(as_int()) : get<double>("a float");
}

std::complex<double> Value::as_complex() const { return get<std::complex<double>>("a complex"); }

const std::string& Value::as_text() const { return *get<Shared<std::string>>("a str"); }

const Bytes& Value::as_bytes() const { return *get<Shared<Bytes>>("bytes"); }

const Value::List& Value::as_list() const {
  return kind() == Kind::tuple ? std::get<Shared<TupleItems>>(value_)->items : *get<Shared<List>>("a list");
}

const Value::Dict& Value::as_dict() const { return *get<Shared<Dict>>("a dict"); }

const Value::Foreign& Value::as_foreign() const {
  return *get<Shared<Foreign>>("a value that only Python understands");
}

const Tensor& Value::as_tensor() const { return get<Tensor>("a tensor"); }

}  // namespace onecopy::rpc
