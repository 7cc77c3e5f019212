// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "array/strided.h"
#include "binding/module.h"
#include "onecopy/core/dtype.h"

/// Converts single elements of every dtype to and from Python numbers, without numpy.
/// Thread safety: all functions are called with the GIL held.
namespace onecopy::python {

/// Returns the element as a bool, int, float or complex.
nb::object to_number(DType dtype, const std::byte* element);

/// Returns the nearest element; ties go to the even one. A number too large for a float dtype becomes infinity, or NaN
/// if the dtype lacks infinity. Raises TypeError, with `argument` in the message, for a value that is not a number of
/// the dtype's kind (e.g. a float for an int dtype), OverflowError for an int that does not fit.
Element from_number(DType dtype, nb::handle number, const char* argument);

}  // namespace onecopy::python
