// SPDX-License-Identifier: Apache-2.0
#include "dlpack_dtype.h"

#include <fmt/format.h>

#include <array>

#include "onecopy/core/error.h"

namespace onecopy {

namespace {

struct CodeRow {
  DType dtype;
  std::uint8_t code;
};

// The codes of DLDataTypeCode; the number of bits follows from the dtype.
constexpr std::array kCodeRows{
    CodeRow{DType::boolean, 6},      CodeRow{DType::u8, 1},           CodeRow{DType::i8, 0},
    CodeRow{DType::u16, 1},          CodeRow{DType::i16, 0},          CodeRow{DType::u32, 1},
    CodeRow{DType::i32, 0},          CodeRow{DType::u64, 1},          CodeRow{DType::i64, 0},
    CodeRow{DType::f16, 2},          CodeRow{DType::bf16, 4},         CodeRow{DType::f32, 2},
    CodeRow{DType::f64, 2},          CodeRow{DType::c64, 5},          CodeRow{DType::c128, 5},
    CodeRow{DType::f8_e4m3fn, 10},   CodeRow{DType::f8_e4m3fnuz, 11}, CodeRow{DType::f8_e5m2, 12},
    CodeRow{DType::f8_e5m2fnuz, 13}, CodeRow{DType::f8_e8m0fnu, 14},
};

}  // namespace

DLDataType to_dl(DType dtype) noexcept {
  for (const CodeRow& row : kCodeRows)
    if (row.dtype == dtype) return {row.code, static_cast<std::uint8_t>(8 * size_of(dtype)), 1};
  return {1, 8, 1};
}

DType from_dl(DLDataType dtype) {
  if (dtype.lanes != 1)
    throw Error(ErrorCode::unsupported,
                fmt::format("DLPack elements of {} lanes are not supported; view them as scalars with one "
                            "more dimension",
                            dtype.lanes));
  for (const CodeRow& row : kCodeRows)
    if (row.code == dtype.code && 8 * size_of(row.dtype) == dtype.bits) return row.dtype;
  throw Error(ErrorCode::unsupported, fmt::format("no dtype of onecopy matches DLPack code {} with {} bits",
                                                  dtype.code, dtype.bits));
}

}  // namespace onecopy
