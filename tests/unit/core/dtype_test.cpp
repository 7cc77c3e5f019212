// SPDX-License-Identifier: Apache-2.0
#include "onecopy/core/dtype.h"

#include <gtest/gtest.h>

namespace onecopy {
namespace {

TEST(DType, NumbersThatTravelInHandlesNeverChange) {
  EXPECT_EQ(static_cast<int>(DType::boolean), 1);
  EXPECT_EQ(static_cast<int>(DType::i64), 9);
  EXPECT_EQ(static_cast<int>(DType::f32), 12);
  EXPECT_EQ(static_cast<int>(DType::f8_e8m0fnu), 20);
}

TEST(DType, EveryNameParsesBackToItsDType) {
  for (int number = 1; number <= static_cast<int>(kLastDType); ++number) {
    const auto dtype = static_cast<DType>(number);
    EXPECT_TRUE(is_valid(dtype));
    EXPECT_EQ(parse_dtype(name(dtype)), dtype) << name(dtype);
  }
}

TEST(DType, SizesAreThoseOfTheElements) {
  EXPECT_EQ(size_of(DType::boolean), 1u);
  EXPECT_EQ(size_of(DType::i8), 1u);
  EXPECT_EQ(size_of(DType::u16), 2u);
  EXPECT_EQ(size_of(DType::bf16), 2u);
  EXPECT_EQ(size_of(DType::f16), 2u);
  EXPECT_EQ(size_of(DType::i32), 4u);
  EXPECT_EQ(size_of(DType::f32), 4u);
  EXPECT_EQ(size_of(DType::u64), 8u);
  EXPECT_EQ(size_of(DType::c64), 8u);
  EXPECT_EQ(size_of(DType::c128), 16u);
  EXPECT_EQ(size_of(DType::f8_e5m2fnuz), 1u);
}

TEST(DType, NamesAreThoseOfNumpy) {
  EXPECT_EQ(name(DType::boolean), "bool");
  EXPECT_EQ(name(DType::u8), "uint8");
  EXPECT_EQ(name(DType::bf16), "bfloat16");
  EXPECT_EQ(name(DType::c128), "complex128");
  EXPECT_EQ(name(DType::f8_e4m3fn), "float8_e4m3fn");
}

TEST(DType, UnknownNumbersAndNamesAreRecognised) {
  EXPECT_FALSE(is_valid(static_cast<DType>(0)));
  EXPECT_FALSE(is_valid(static_cast<DType>(21)));
  EXPECT_EQ(size_of(static_cast<DType>(255)), 0u);
  EXPECT_EQ(name(static_cast<DType>(255)), "unknown");
  EXPECT_EQ(parse_dtype("float33"), std::nullopt);
  EXPECT_EQ(parse_dtype(""), std::nullopt);
}

}  // namespace
}  // namespace onecopy
