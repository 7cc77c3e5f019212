// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "array/strided.h"
#include "binding/module.h"
#include "onecopy/core/dtype.h"

/// Single elements as Python numbers, of every dtype there is, without numpy.
/// Thread safety: all functions are called with the GIL held.
namespace onecopy::python {

/// A bool, int, float or complex.
nb::object to_number(DType dtype, const std::byte* element);

/// The nearest element; ties go to the even one. A number too large for a float becomes infinity, or NaN if the dtype
/// has none. Raises TypeError naming `argument` for a value that is no such number (also a float for an int dtype),
/// OverflowError for an int that does not fit.
Element from_number(DType dtype, nb::handle number, const char* argument);

}  // namespace onecopy::python
