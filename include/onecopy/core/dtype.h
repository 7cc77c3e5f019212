// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>

#include "onecopy/core/api.h"

ONECOPY_API_BEGIN
namespace onecopy {

/// The element types. The numbers are part of handles: append new ones, never renumber.
enum class DType : std::uint8_t {
  boolean = 1,
  u8 = 2,
  i8 = 3,
  u16 = 4,
  i16 = 5,
  u32 = 6,
  i32 = 7,
  u64 = 8,
  i64 = 9,
  f16 = 10,
  bf16 = 11,
  f32 = 12,
  f64 = 13,
  c64 = 14,   ///< complex of two f32
  c128 = 15,  ///< complex of two f64
  f8_e4m3fn = 16,
  f8_e4m3fnuz = 17,
  f8_e5m2 = 18,
  f8_e5m2fnuz = 19,
  f8_e8m0fnu = 20,
};

ONECOPY_CONSTANT DType kFirstDType = DType::boolean;
ONECOPY_CONSTANT DType kLastDType = DType::f8_e8m0fnu;

constexpr bool is_valid(DType dtype) noexcept { return dtype >= kFirstDType && dtype <= kLastDType; }

namespace detail {
ONECOPY_CONSTANT std::array<std::uint8_t, 21> kDTypeSizes{0, 1, 1, 1, 2,  2, 4, 4, 8, 8, 2,
                                                          2, 4, 8, 8, 16, 1, 1, 1, 1, 1};
}

/// Returns the size of one element in bytes, or 0 for an unknown type.
constexpr std::size_t size_of(DType dtype) noexcept {
  return is_valid(dtype) ? detail::kDTypeSizes[static_cast<std::size_t>(dtype)] : 0;
}
namespace detail {

/// Returns whether a pointer to T is a pointer to bytes, which may address memory of any type.
template <class T>
inline constexpr bool is_byte =
    std::same_as<T, std::byte> || std::same_as<T, char> || std::same_as<T, unsigned char>;

constexpr bool is_between(DType dtype, DType first, DType last) noexcept {
  return dtype >= first && dtype <= last;
}

}  // namespace detail

/// Returns whether T is a C++ type for elements of the dtype: the arithmetic type of that kind and size, or another
/// type of that size (std::complex, std::atomic, a class for half precision). unsigned integers also stand for the bits
/// of f16, bf16 and the f8 types.
template <class T>
constexpr bool is_element_type(DType dtype) noexcept {
  using Element = std::remove_cv_t<T>;
  if (size_of(dtype) != sizeof(Element)) return false;
  if constexpr (std::same_as<Element, bool>) return dtype == DType::boolean;
  else if constexpr (std::floating_point<Element>) return dtype == DType::f32 || dtype == DType::f64;
  else if constexpr (std::signed_integral<Element>)
    return detail::is_between(dtype, DType::u8, DType::i64) && static_cast<unsigned>(dtype) % 2 == 1;
  else if constexpr (std::unsigned_integral<Element>)
    return dtype == DType::f16 || dtype == DType::bf16 || dtype >= DType::f8_e4m3fn ||
           (detail::is_between(dtype, DType::u8, DType::i64) && static_cast<unsigned>(dtype) % 2 == 0);
  else return true;
}

/// Returns the NumPy-like name: "bool", "uint8", "float32", "bfloat16", "float8_e4m3fn", ...
std::string_view name(DType dtype) noexcept;
/// Returns the names of all element types.
std::span<const std::string_view> dtype_names() noexcept;
/// Returns the type of that name(), or an empty optional.
std::optional<DType> parse_dtype(std::string_view name) noexcept;

}  // namespace onecopy
ONECOPY_API_END
