// SPDX-License-Identifier: Apache-2.0
#include "cli/numbers.h"

#include <array>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "onecopy/core/bytes.h"

namespace onecopy::cli {
namespace {

template <class T>
double decoded(DType dtype, T bits) {
  std::array<std::byte, 16> at{};
  store(at.data(), bits);
  return element_as_double(dtype, at.data());
}

TEST(Numbers, DecodesHalfPrecision) {
  EXPECT_EQ(decoded<std::uint16_t>(DType::f16, 0x3c00), 1.0);
  EXPECT_EQ(decoded<std::uint16_t>(DType::f16, 0xc100), -2.5);
  EXPECT_EQ(decoded<std::uint16_t>(DType::f16, 0x7bff), 65504.0);
  EXPECT_EQ(decoded<std::uint16_t>(DType::f16, 0x0001), std::ldexp(1.0, -24));
  EXPECT_EQ(decoded<std::uint16_t>(DType::f16, 0xfc00), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(decoded<std::uint16_t>(DType::f16, 0x7e00)));
  EXPECT_EQ(decoded<std::uint16_t>(DType::bf16, 0x4049), 3.140625);
}

TEST(Numbers, DecodesTheEightBitFormatsAtTheirEdges) {
  EXPECT_EQ(decoded<std::uint8_t>(DType::f8_e4m3fn, 0x7e), 448.0);
  EXPECT_TRUE(std::isnan(decoded<std::uint8_t>(DType::f8_e4m3fn, 0x7f)));
  EXPECT_EQ(decoded<std::uint8_t>(DType::f8_e4m3fn, 0x01), std::ldexp(1.0, -9));
  EXPECT_EQ(decoded<std::uint8_t>(DType::f8_e4m3fnuz, 0x7f), 240.0);
  EXPECT_TRUE(std::isnan(decoded<std::uint8_t>(DType::f8_e4m3fnuz, 0x80)));
  EXPECT_EQ(decoded<std::uint8_t>(DType::f8_e5m2, 0x7b), 57344.0);
  EXPECT_TRUE(std::isinf(decoded<std::uint8_t>(DType::f8_e5m2, 0x7c)));
  EXPECT_EQ(decoded<std::uint8_t>(DType::f8_e5m2fnuz, 0x7f), 57344.0);
  EXPECT_TRUE(std::isnan(decoded<std::uint8_t>(DType::f8_e5m2fnuz, 0x80)));
  EXPECT_EQ(decoded<std::uint8_t>(DType::f8_e8m0fnu, 127), 1.0);
  EXPECT_TRUE(std::isnan(decoded<std::uint8_t>(DType::f8_e8m0fnu, 255)));
}

TEST(Numbers, SmallNumbersSurviveEveryTypeThatHasThem) {
  for (int raw = static_cast<int>(kFirstDType); raw <= static_cast<int>(kLastDType); ++raw) {
    const auto dtype = static_cast<DType>(raw);
    if (dtype == DType::boolean) continue;
    for (int number : {1, 2, 4, 7}) {
      if (dtype == DType::f8_e8m0fnu && number == 7) continue;  // powers of two only
      std::array<std::byte, 16> at{};
      store_small_number(dtype, at.data(), number);
      EXPECT_EQ(element_as_double(dtype, at.data()), number) << name(dtype);
    }
  }
}

TEST(Numbers, SumsAndChecksumsFollowTheStrides) {
  std::array<float, 6> values{1, 2, 3, 4, 5, 6};
  const std::array<std::int64_t, 2> shape{2, 2};
  const std::array<std::int64_t, 2> strides{3, 1};
  const Tensor corner(BlockRef(), values.data(), Layout(DType::f32, shape, strides), kCpu,
                      Access::read_write);
  const Summary summary = summarize(corner);
  EXPECT_EQ(summary.sum.real(), 1 + 2 + 4 + 5);
  const std::array<float, 4> dense{1, 2, 4, 5};
  EXPECT_EQ(summary.checksum, crc32c(std::as_bytes(std::span(dense))));
}

TEST(Numbers, AnEmptyTensorSumsToNothing) {
  const Tensor none(BlockRef(), nullptr, Layout(DType::f64, {3, 0}), kCpu, Access::read_write);
  EXPECT_EQ(summarize(none).sum.real(), 0.0);
  EXPECT_EQ(summarize(none).checksum, crc32c({}));
}

TEST(Numbers, AScalarIsOneElement) {
  double value = 2.5;
  const Tensor scalar(BlockRef(), &value, Layout(DType::f64), kCpu, Access::read_write);
  EXPECT_EQ(summarize(scalar).sum.real(), 2.5);
}

TEST(Numbers, ComplexSumsKeepBothParts) {
  std::array<float, 4> values{1, 2, 3, -5};
  const Tensor pair(BlockRef(), values.data(), Layout(DType::c64, {2}), kCpu, Access::read_write);
  EXPECT_EQ(summarize(pair).sum, std::complex<double>(4, -3));
  EXPECT_EQ(format_sum(DType::c64, summarize(pair).sum), "4 - 3i");
}

}  // namespace
}  // namespace onecopy::cli
