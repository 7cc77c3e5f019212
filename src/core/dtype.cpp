// SPDX-License-Identifier: Apache-2.0
#include "onecopy/core/dtype.h"

namespace onecopy {
namespace {

/// The names by number, from kFirstDType.
constexpr std::array<std::string_view, 20> kNames{
    "bool",          "uint8",           "int8",        "uint16",          "int16",
    "uint32",        "int32",           "uint64",      "int64",           "float16",
    "bfloat16",      "float32",         "float64",     "complex64",       "complex128",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
};
static_assert(kNames.size() == static_cast<std::size_t>(kLastDType));
static_assert(detail::kDTypeSizes.size() == kNames.size() + 1);

}  // namespace

std::string_view name(DType dtype) noexcept {
  return is_valid(dtype) ? kNames[static_cast<std::size_t>(dtype) - 1] : "unknown";
}

std::span<const std::string_view> dtype_names() noexcept { return kNames; }

std::optional<DType> parse_dtype(std::string_view name) noexcept {
  for (std::size_t i = 0; i < kNames.size(); ++i)
    if (kNames[i] == name) return static_cast<DType>(i + 1);
  return std::nullopt;
}

}  // namespace onecopy
