// SPDX-License-Identifier: Apache-2.0
#include "onecopy/core/dtype.h"

#include <array>

namespace onecopy {
namespace {

struct Row {
  std::string_view name;
  std::uint8_t size;
};

/// By number, from kFirstDType.
constexpr std::array<Row, 20> kRows{{
    {"bool", 1},
    {"uint8", 1},
    {"int8", 1},
    {"uint16", 2},
    {"int16", 2},
    {"uint32", 4},
    {"int32", 4},
    {"uint64", 8},
    {"int64", 8},
    {"float16", 2},
    {"bfloat16", 2},
    {"float32", 4},
    {"float64", 8},
    {"complex64", 8},
    {"complex128", 16},
    {"float8_e4m3fn", 1},
    {"float8_e4m3fnuz", 1},
    {"float8_e5m2", 1},
    {"float8_e5m2fnuz", 1},
    {"float8_e8m0fnu", 1},
}};
static_assert(kRows.size() == static_cast<std::size_t>(kLastDType));

const Row* row(DType dtype) noexcept {
  return is_valid(dtype) ? &kRows[static_cast<std::size_t>(dtype) - 1] : nullptr;
}

}  // namespace

bool is_valid(DType dtype) noexcept { return dtype >= kFirstDType && dtype <= kLastDType; }

std::size_t size_of(DType dtype) noexcept {
  const Row* found = row(dtype);
  return found ? found->size : 0;
}

std::string_view name(DType dtype) noexcept {
  const Row* found = row(dtype);
  return found ? found->name : "unknown";
}

std::optional<DType> parse_dtype(std::string_view name) noexcept {
  for (std::size_t i = 0; i < kRows.size(); ++i)
    if (kRows[i].name == name) return static_cast<DType>(i + 1);
  return std::nullopt;
}

}  // namespace onecopy
