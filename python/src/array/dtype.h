// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "binding/module.h"
#include "onecopy/core/dtype.h"

namespace onecopy::python {

/// Returns the onecopy.DType of the dtype. REQUIRES: the GIL.
nb::object dtype_object(DType dtype);

/// Returns whether numpy has the dtype. The package ml_dtypes adds others.
bool is_native_to_numpy(DType dtype) noexcept;

/// Returns the format of the buffer protocol (PEP 3118), e.g. "f"; null for dtypes that it lacks.
const char* buffer_format(DType dtype) noexcept;
/// Returns the dtype of a format, for elements in the machine's byte order; empty for records, text, long double etc.
std::optional<DType> parse_buffer_format(const char* format, std::size_t element_size) noexcept;

}  // namespace onecopy::python
