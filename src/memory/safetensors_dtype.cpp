// SPDX-License-Identifier: Apache-2.0
#include "safetensors_dtype.h"

#include <algorithm>
#include <array>

namespace onecopy {

namespace {

struct NameRow {
  std::string_view name;
  DType dtype;
};

constexpr std::array kNameRows{
    NameRow{"BOOL", DType::boolean},
    NameRow{"U8", DType::u8},
    NameRow{"I8", DType::i8},
    NameRow{"U16", DType::u16},
    NameRow{"I16", DType::i16},
    NameRow{"U32", DType::u32},
    NameRow{"I32", DType::i32},
    NameRow{"U64", DType::u64},
    NameRow{"I64", DType::i64},
    NameRow{"F16", DType::f16},
    NameRow{"BF16", DType::bf16},
    NameRow{"F32", DType::f32},
    NameRow{"F64", DType::f64},
    NameRow{"C64", DType::c64},
    NameRow{"F8_E4M3", DType::f8_e4m3fn},
    NameRow{"F8_E4M3FNUZ", DType::f8_e4m3fnuz},
    NameRow{"F8_E5M2", DType::f8_e5m2},
    NameRow{"F8_E5M2FNUZ", DType::f8_e5m2fnuz},
    NameRow{"F8_E8M0", DType::f8_e8m0fnu},
};
constexpr std::array<std::string_view, 3> kWithoutDType{"F4", "F6_E2M3", "F6_E3M2"};

}  // namespace

std::string_view safetensors_name(DType dtype) noexcept {
  for (const NameRow& row : kNameRows)
    if (row.dtype == dtype) return row.name;
  return {};
}

std::optional<DType> parse_safetensors_dtype(std::string_view name) noexcept {
  for (const NameRow& row : kNameRows)
    if (row.name == name) return row.dtype;
  return std::nullopt;
}

bool is_known_safetensors_dtype(std::string_view name) noexcept {
  return std::find(kWithoutDType.begin(), kWithoutDType.end(), name) != kWithoutDType.end();
}

}  // namespace onecopy
