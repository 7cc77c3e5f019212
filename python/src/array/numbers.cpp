// SPDX-License-Identifier: Apache-2.0
#include "array/numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "binding/args.h"
#include "onecopy/core/bytes.h"

namespace onecopy::python {
namespace {

/// The format of a float of at most 16 bits.
struct SmallFloat {
  enum class Special : std::uint8_t {
    ieee,           ///< the largest exponent means infinity and NaN
    finite,         ///< NaN is all ones, and there is no infinity
    unsigned_zero,  ///< NaN has the code of minus zero, and there is no infinity
  };
  int bits;
  int mantissa;
  int bias;
  Special special;

  int sign() const { return mantissa == 0 ? 0 : 1; }  // e8m0: powers of two only
  unsigned exponent_mask() const { return (1U << (bits - sign() - mantissa)) - 1; }
  unsigned magnitude_mask() const { return (1U << (bits - sign())) - 1; }
  unsigned sign_bit() const { return sign() == 0 ? 0 : 1U << (bits - 1); }
  unsigned nan() const {
    if (special == Special::unsigned_zero) return sign_bit();
    if (special == Special::finite) return magnitude_mask();
    return infinity() | 1U << (mantissa - 1);
  }
  unsigned infinity() const { return exponent_mask() << mantissa; }
  unsigned largest() const {
    if (special == Special::ieee) return infinity() - 1;
    return special == Special::finite ? magnitude_mask() - 1 : magnitude_mask();
  }
};

std::optional<SmallFloat> small_float(DType dtype) {
  using enum SmallFloat::Special;
  switch (dtype) {
    case DType::f16: return SmallFloat{16, 10, 15, ieee};
    case DType::bf16: return SmallFloat{16, 7, 127, ieee};
    case DType::f8_e4m3fn: return SmallFloat{8, 3, 7, finite};
    case DType::f8_e4m3fnuz: return SmallFloat{8, 3, 8, unsigned_zero};
    case DType::f8_e5m2: return SmallFloat{8, 2, 15, ieee};
    case DType::f8_e5m2fnuz: return SmallFloat{8, 2, 16, unsigned_zero};
    case DType::f8_e8m0fnu: return SmallFloat{8, 0, 127, finite};
    default: return std::nullopt;
  }
}

double decode(const SmallFloat& format, unsigned code) {
  const unsigned magnitude = code & format.magnitude_mask();
  const double sign = (code & format.sign_bit()) != 0 ? -1.0 : 1.0;
  if (format.special == SmallFloat::Special::unsigned_zero ? code == format.nan() : false) return NAN;
  if (format.special == SmallFloat::Special::ieee && magnitude >= format.infinity())
    return magnitude == format.infinity() ? sign * INFINITY : NAN;
  if (format.special == SmallFloat::Special::finite && magnitude == format.nan()) return NAN;
  const int exponent = static_cast<int>(magnitude >> format.mantissa);
  const auto fraction = static_cast<int>(magnitude & ((1U << format.mantissa) - 1));
  const bool subnormal = exponent == 0 && format.mantissa > 0;
  const int whole = subnormal ? fraction : fraction + (1 << format.mantissa);
  return sign * std::ldexp(whole, (subnormal ? 1 : exponent) - format.bias - format.mantissa);
}

unsigned encode(const SmallFloat& format, double value) {
  if (std::isnan(value) || (value < 0 && format.sign() == 0)) return format.nan();
  const unsigned sign = std::signbit(value) ? format.sign_bit() : 0;
  const double magnitude = std::fabs(value);
  const bool powers_only = format.mantissa == 0;
  const int smallest = (powers_only ? 0 : 1) - format.bias;  // exponent of the smallest normal number
  unsigned code = 0;
  if (std::isinf(value)) {
    code = format.largest() + 1;
  } else if (magnitude != 0) {
    const int exponent = std::max(std::ilogb(magnitude), smallest);
    // In units of the last place; rounding up to the next power of two carries into the exponent.
    const double units = std::nearbyint(std::ldexp(magnitude, format.mantissa - exponent));
    const double shifted = std::ldexp(exponent - smallest + (powers_only ? -1 : 0), format.mantissa);
    code = static_cast<unsigned>(std::clamp(units + shifted, 0.0, format.largest() + 1.0));
  }
  if (code > format.largest())
    return format.special == SmallFloat::Special::ieee ? sign | format.infinity() : sign | format.nan();
  if (code == 0 && format.special == SmallFloat::Special::unsigned_zero) return 0;
  return sign | code;
}

template <class T>
nb::object to_int(const std::byte* element) {
  return nb::int_(load<T>(element));
}

[[noreturn]] void refuse(DType dtype, nb::handle number, const char* argument, const char* wanted) {
  raise_type_error(fmt::format("{} must be {} for a tensor of {}, not {}", argument, wanted,
                               onecopy::name(dtype), short_repr(number)));
}

[[noreturn]] void raise_overflow(DType dtype, nb::handle number, const char* argument) {
  PyErr_SetString(PyExc_OverflowError, fmt::format("{}: {} does not fit into {}", argument,
                                                   short_repr(number), onecopy::name(dtype))
                                           .c_str());
  throw nb::python_error();
}

template <class T>
void from_int(Element& element, DType dtype, nb::handle number, const char* argument) {
  if (!PyIndex_Check(number.ptr())) refuse(dtype, number, argument, "an int");
  const nb::object index = owned(PyNumber_Index(number.ptr()));
  T value{};
  if constexpr (std::is_signed_v<T>) {
    int overflow = 0;
    const long long wide = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
    if (overflow != 0 || !std::in_range<T>(wide)) raise_overflow(dtype, number, argument);
    value = static_cast<T>(wide);
  } else {
    const unsigned long long wide = PyLong_AsUnsignedLongLong(index.ptr());
    const bool failed = PyErr_Occurred() != nullptr;
    PyErr_Clear();
    if (failed || !std::in_range<T>(wide)) raise_overflow(dtype, number, argument);
    value = static_cast<T>(wide);
  }
  write_value(element.data(), value);
}

double real(DType dtype, nb::handle number, const char* argument) {
  const double value = PyFloat_AsDouble(number.ptr());
  if (value != -1.0 || !PyErr_Occurred()) return value;
  if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw nb::python_error();
  PyErr_Clear();
  refuse(dtype, number, argument, "a number");
}

/// Returns the real and the imaginary part.
std::array<double, 2> complex(DType dtype, nb::handle number, const char* argument) {
  const bool converts = !PyComplex_Check(number.ptr()) && nb::hasattr(number, "__complex__");
  const nb::object value = converts ? number.attr("__complex__")() : nb::borrow(number);
  const double real = PyComplex_RealAsDouble(value.ptr());
  if (real != -1.0 || !PyErr_Occurred()) return {real, PyComplex_ImagAsDouble(value.ptr())};
  if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw nb::python_error();
  PyErr_Clear();
  refuse(dtype, number, argument, "a number");
}

void from_bool(Element& element, DType dtype, nb::handle number, const char* argument) {
  if (!PyBool_Check(number.ptr()) && !PyNumber_Check(number.ptr()))
    refuse(dtype, number, argument, "a bool");
  const int truth = PyObject_IsTrue(number.ptr());
  if (truth < 0) throw nb::python_error();
  element[0] = static_cast<std::byte>(truth);
}

}  // namespace

nb::object to_number(DType dtype, const std::byte* element) {
  if (const auto format = small_float(dtype)) {
    const unsigned code = format->bits == 16 ? load<std::uint16_t>(element) : load<std::uint8_t>(element);
    return nb::float_(decode(*format, code));
  }
  switch (dtype) {
    case DType::boolean: return nb::bool_(load<std::uint8_t>(element) != 0);
    case DType::u8: return to_int<std::uint8_t>(element);
    case DType::i8: return to_int<std::int8_t>(element);
    case DType::u16: return to_int<std::uint16_t>(element);
    case DType::i16: return to_int<std::int16_t>(element);
    case DType::u32: return to_int<std::uint32_t>(element);
    case DType::i32: return to_int<std::int32_t>(element);
    case DType::u64: return to_int<std::uint64_t>(element);
    case DType::i64: return to_int<std::int64_t>(element);
    case DType::f32: return nb::float_(load<float>(element));
    case DType::c64:
      return nb::steal(PyComplex_FromDoubles(load<float>(element), load<float>(element + sizeof(float))));
    case DType::c128:
      return nb::steal(
          PyComplex_FromDoubles(load<double>(element), load<double>(element + sizeof(double))));
    default: return nb::float_(load<double>(element));
  }
}

Element from_number(DType dtype, nb::handle number, const char* argument) {
  Element element{};
  if (const auto format = small_float(dtype)) {
    const unsigned code = encode(*format, real(dtype, number, argument));
    write_value(element.data(), static_cast<std::uint16_t>(code));  // little endian: 8 bits come first
    return element;
  }
  switch (dtype) {
    case DType::boolean: from_bool(element, dtype, number, argument); break;
    case DType::u8: from_int<std::uint8_t>(element, dtype, number, argument); break;
    case DType::i8: from_int<std::int8_t>(element, dtype, number, argument); break;
    case DType::u16: from_int<std::uint16_t>(element, dtype, number, argument); break;
    case DType::i16: from_int<std::int16_t>(element, dtype, number, argument); break;
    case DType::u32: from_int<std::uint32_t>(element, dtype, number, argument); break;
    case DType::i32: from_int<std::int32_t>(element, dtype, number, argument); break;
    case DType::u64: from_int<std::uint64_t>(element, dtype, number, argument); break;
    case DType::i64: from_int<std::int64_t>(element, dtype, number, argument); break;
    case DType::f32: write_value(element.data(), static_cast<float>(real(dtype, number, argument))); break;
    case DType::c64: {
      const auto [real_part, imaginary] = complex(dtype, number, argument);
      write_value(element.data(), std::array{static_cast<float>(real_part), static_cast<float>(imaginary)});
      break;
    }
    case DType::c128: write_value(element.data(), complex(dtype, number, argument)); break;
    default: write_value(element.data(), real(dtype, number, argument)); break;
  }
  return element;
}

}  // namespace onecopy::python
