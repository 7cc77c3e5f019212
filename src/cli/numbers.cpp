// SPDX-License-Identifier: Apache-2.0
#include "numbers.h"

#include <bit>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "onecopy/core/bytes.h"

namespace onecopy::cli {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// A small binary floating-point format.
struct FloatFormat {
  int exponent_bits;
  int mantissa_bits;
  int bias;
  /// IEEE: an exponent of all ones is infinite or not a number.
  bool ieee;
  /// Negative zero is the only NaN ("fnuz").
  bool nan_is_negative_zero;

  double decode(unsigned bits) const noexcept {
    const unsigned sign_bit = 1u << (exponent_bits + mantissa_bits);
    const unsigned most = (1u << exponent_bits) - 1;
    const unsigned mantissa = bits & ((1u << mantissa_bits) - 1);
    const unsigned exponent = bits >> mantissa_bits & most;
    const double sign = bits & sign_bit ? -1.0 : 1.0;
    if (nan_is_negative_zero && bits == sign_bit) return kNan;
    if (ieee && exponent == most) return mantissa ? kNan : sign * std::numeric_limits<double>::infinity();
    if (!ieee && !nan_is_negative_zero && (bits & (sign_bit - 1)) == sign_bit - 1) return kNan;
    const double fraction = std::ldexp(static_cast<double>(mantissa), -mantissa_bits);
    if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias);
    return sign * std::ldexp(1.0 + fraction, static_cast<int>(exponent) - bias);
  }
};

constexpr FloatFormat kF16{5, 10, 15, true, false};
constexpr FloatFormat kE4m3fn{4, 3, 7, false, false};
constexpr FloatFormat kE4m3fnuz{4, 3, 8, false, true};
constexpr FloatFormat kE5m2{5, 2, 15, true, false};
constexpr FloatFormat kE5m2fnuz{5, 2, 16, false, true};

/// Faster than ldexp for the one wide format that is common.
double decode_f16(std::uint16_t bits) noexcept {
  const unsigned exponent = bits >> 10 & 31u;
  if (exponent == 0 || exponent == 31) return kF16.decode(bits);
  const std::uint32_t wide = (bits & 0x8000u) << 16 | (exponent + 112) << 23 | (bits & 0x3ffu) << 13;
  return static_cast<double>(std::bit_cast<float>(wide));
}

double decode_bf16(std::uint16_t bits) noexcept {
  return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16));
}

double decode_e8m0(std::uint8_t bits) noexcept { return bits == 255 ? kNan : std::ldexp(1.0, bits - 127); }

template <class T>
double plain(const std::byte* at) noexcept {
  return static_cast<double>(load<T>(at));
}

template <const FloatFormat& kFormat>
double small_float(const std::byte* at) noexcept {
  return kFormat.decode(load<std::uint8_t>(at));
}

using Decode = double (*)(const std::byte*) noexcept;

Decode decoder_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::boolean: return [](const std::byte* at) noexcept { return *at == std::byte{} ? 0.0 : 1.0; };
    case DType::u8: return plain<std::uint8_t>;
    case DType::i8: return plain<std::int8_t>;
    case DType::u16: return plain<std::uint16_t>;
    case DType::i16: return plain<std::int16_t>;
    case DType::u32: return plain<std::uint32_t>;
    case DType::i32: return plain<std::int32_t>;
    case DType::u64: return plain<std::uint64_t>;
    case DType::i64: return plain<std::int64_t>;
    case DType::f16:
      return [](const std::byte* at) noexcept { return decode_f16(load<std::uint16_t>(at)); };
    case DType::bf16:
      return [](const std::byte* at) noexcept { return decode_bf16(load<std::uint16_t>(at)); };
    case DType::f32:
    case DType::c64: return plain<float>;
    case DType::f64:
    case DType::c128: return plain<double>;
    case DType::f8_e4m3fn: return small_float<kE4m3fn>;
    case DType::f8_e4m3fnuz: return small_float<kE4m3fnuz>;
    case DType::f8_e5m2: return small_float<kE5m2>;
    case DType::f8_e5m2fnuz: return small_float<kE5m2fnuz>;
    case DType::f8_e8m0fnu:
      return [](const std::byte* at) noexcept { return decode_e8m0(load<std::uint8_t>(at)); };
  }
  return [](const std::byte*) noexcept { return kNan; };
}

bool is_complex(DType dtype) noexcept { return dtype == DType::c64 || dtype == DType::c128; }

/// Sums a run; complex types are runs of pairs.
std::complex<double> sum_of(DType dtype, ByteSpan run) noexcept {
  const Decode decode = decoder_of(dtype);
  const std::size_t item = size_of(dtype);
  double real = 0;
  double imaginary = 0;
  for (std::size_t at = 0; at < run.size(); at += item) {
    real += decode(run.data() + at);
    if (is_complex(dtype)) imaginary += decode(run.data() + at + item / 2);
  }
  return {real, imaginary};
}

/// The bits of a small whole number in a format with an implied leading one.
unsigned encode_small(const FloatFormat& format, int number) noexcept {
  if (number == 0) return 0;
  const int exponent = std::bit_width(static_cast<unsigned>(number)) - 1;
  const unsigned fraction = static_cast<unsigned>(number) - (1u << exponent);
  const unsigned mantissa = exponent <= format.mantissa_bits
                                ? fraction << (format.mantissa_bits - exponent)
                                : fraction >> (exponent - format.mantissa_bits);
  return static_cast<unsigned>(exponent + format.bias) << format.mantissa_bits | mantissa;
}

}  // namespace

double element_as_double(DType dtype, const std::byte* at) noexcept { return decoder_of(dtype)(at); }

void store_small_number(DType dtype, std::byte* at, int number) noexcept {
  const auto as_u8 = [&](const FloatFormat& f) {
    store(at, static_cast<std::uint8_t>(encode_small(f, number)));
  };
  switch (dtype) {
    case DType::boolean: return store(at, static_cast<std::uint8_t>(number != 0));
    case DType::u8:
    case DType::i8: return store(at, static_cast<std::uint8_t>(number));
    case DType::u16:
    case DType::i16: return store(at, static_cast<std::uint16_t>(number));
    case DType::u32:
    case DType::i32: return store(at, static_cast<std::uint32_t>(number));
    case DType::u64:
    case DType::i64: return store(at, static_cast<std::uint64_t>(number));
    case DType::f16: return store(at, static_cast<std::uint16_t>(encode_small(kF16, number)));
    case DType::bf16:
      return store(
          at, static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(number)) >> 16));
    case DType::f32:
    case DType::c64: return store(at, static_cast<float>(number));
    case DType::f64:
    case DType::c128: return store(at, static_cast<double>(number));
    case DType::f8_e4m3fn: return as_u8(kE4m3fn);
    case DType::f8_e4m3fnuz: return as_u8(kE4m3fnuz);
    case DType::f8_e5m2: return as_u8(kE5m2);
    case DType::f8_e5m2fnuz: return as_u8(kE5m2fnuz);
    case DType::f8_e8m0fnu:
      return store(at, static_cast<std::uint8_t>(126 + std::bit_width(static_cast<unsigned>(number))));
  }
}

InnerRun inner_run(const Layout& layout) noexcept {
  InnerRun run{layout.ndim(), 1};
  while (run.outer_dims > 0) {
    const std::size_t dim = run.outer_dims - 1;
    if (layout.shape()[dim] != 1 && layout.strides()[dim] != run.elements) break;
    run.elements *= layout.shape()[dim];
    run.outer_dims = dim;
  }
  return run;
}

Summary summarize(const Tensor& tensor) {
  Summary summary;
  for_each_run(tensor, [&](ByteSpan run) {
    summary.sum += sum_of(tensor.dtype(), run);
    summary.checksum = crc32c(run, summary.checksum);
  });
  return summary;
}

std::uint32_t checksum_of(const Tensor& tensor, std::uint32_t seed) {
  for_each_run(tensor, [&](ByteSpan run) { seed = crc32c(run, seed); });
  return seed;
}

std::string format_sum(DType dtype, std::complex<double> sum) {
  if (is_complex(dtype))
    return fmt::format("{:.6g} {} {:.6g}i", sum.real(), sum.imag() < 0 ? '-' : '+', std::abs(sum.imag()));
  return fmt::format("{:.10g}", sum.real());
}

}  // namespace onecopy::cli
