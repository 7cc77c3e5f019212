// SPDX-License-Identifier: Apache-2.0
#include "dlpack_dtype.h"

#include <fmt/format.h>

#include <array>

#include "onecopy/core/error.h"

namespace onecopy {

namespace {

struct Row {
  DType dtype;
  std::uint8_t code;
};

// Codes of DLDataTypeCode; the number of bits follows from the dtype.
constexpr std::array kRows{
    Row{DType::boolean, 6},      Row{DType::u8, 1},           Row{DType::i8, 0},
    Row{DType::u16, 1},          Row{DType::i16, 0},          Row{DType::u32, 1},
    Row{DType::i32, 0},          Row{DType::u64, 1},          Row{DType::i64, 0},
    Row{DType::f16, 2},          Row{DType::bf16, 4},         Row{DType::f32, 2},
    Row{DType::f64, 2},          Row{DType::c64, 5},          Row{DType::c128, 5},
    Row{DType::f8_e4m3fn, 10},   Row{DType::f8_e4m3fnuz, 11}, Row{DType::f8_e5m2, 12},
    Row{DType::f8_e5m2fnuz, 13}, Row{DType::f8_e8m0fnu, 14},
};

}  // namespace

DLDataType to_dl(DType dtype) noexcept {
  for (const Row& row : kRows)
    if (row.dtype == dtype) return {row.code, static_cast<std::uint8_t>(8 * size_of(dtype)), 1};
  return {1, 8, 1};
}

DType from_dl(DLDataType dtype) {
  if (dtype.lanes != 1)
    throw Error(ErrorCode::unsupported,
                fmt::format("DLPack elements of {} lanes are not supported; view them as scalars with one "
                            "more dimension",
                            dtype.lanes));
  for (const Row& row : kRows)
    if (row.code == dtype.code && 8 * size_of(row.dtype) == dtype.bits) return row.dtype;
  throw Error(ErrorCode::unsupported, fmt::format("no dtype of onecopy matches DLPack code {} with {} bits",
                                                  dtype.code, dtype.bits));
}

}  // namespace onecopy
