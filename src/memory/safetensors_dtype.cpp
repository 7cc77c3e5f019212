// SPDX-License-Identifier: Apache-2.0
#include "safetensors_dtype.h"

#include <algorithm>
#include <array>

namespace onecopy {

namespace {

struct Row {
  std::string_view name;
  DType dtype;
};

constexpr std::array kRows{
    Row{"BOOL", DType::boolean},
    Row{"U8", DType::u8},
    Row{"I8", DType::i8},
    Row{"U16", DType::u16},
    Row{"I16", DType::i16},
    Row{"U32", DType::u32},
    Row{"I32", DType::i32},
    Row{"U64", DType::u64},
    Row{"I64", DType::i64},
    Row{"F16", DType::f16},
    Row{"BF16", DType::bf16},
    Row{"F32", DType::f32},
    Row{"F64", DType::f64},
    Row{"C64", DType::c64},
    Row{"F8_E4M3", DType::f8_e4m3fn},
    Row{"F8_E4M3FNUZ", DType::f8_e4m3fnuz},
    Row{"F8_E5M2", DType::f8_e5m2},
    Row{"F8_E5M2FNUZ", DType::f8_e5m2fnuz},
    Row{"F8_E8M0", DType::f8_e8m0fnu},
};
constexpr std::array<std::string_view, 3> kWithoutDType{"F4", "F6_E2M3", "F6_E3M2"};

}  // namespace

std::string_view safetensors_name(DType dtype) noexcept {
  for (const Row& row : kRows)
    if (row.dtype == dtype) return row.name;
  return {};
}

std::optional<DType> parse_safetensors_dtype(std::string_view name) noexcept {
  for (const Row& row : kRows)
    if (row.name == name) return row.dtype;
  return std::nullopt;
}

bool is_known_safetensors_dtype(std::string_view name) noexcept {
  return std::find(kWithoutDType.begin(), kWithoutDType.end(), name) != kWithoutDType.end();
}

}  // namespace onecopy
