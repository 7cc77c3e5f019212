// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

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

inline constexpr DType kFirstDType = DType::boolean;
inline constexpr DType kLastDType = DType::f8_e8m0fnu;

constexpr bool is_valid(DType dtype) noexcept { return dtype >= kFirstDType && dtype <= kLastDType; }

namespace detail {
inline constexpr std::array<std::uint8_t, 21> kDTypeSizes{0, 1, 1, 1, 2,  2, 4, 4, 8, 8, 2,
                                                          2, 4, 8, 8, 16, 1, 1, 1, 1, 1};
}

/// Returns the size of one element in bytes, or 0 for an unknown type.
constexpr std::size_t size_of(DType dtype) noexcept {
  return is_valid(dtype) ? detail::kDTypeSizes[static_cast<std::size_t>(dtype)] : 0;
}
/// Returns the NumPy-like name: "bool", "uint8", "float32", "bfloat16", "float8_e4m3fn", ...
std::string_view name(DType dtype) noexcept;
/// Returns the names of all element types.
std::span<const std::string_view> dtype_names() noexcept;
/// Returns the type of that name(), or an empty optional.
std::optional<DType> parse_dtype(std::string_view name) noexcept;

}  // namespace onecopy
