// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "module.h"
#include "onecopy/memory/tensor.h"

namespace onecopy::python {

/// Is it one of numpy's own numbers, such as numpy.int64(3)? Their item() is Python's. Imports nothing.
/// REQUIRES: the GIL.
bool is_numpy_scalar(nb::handle value);

/// The tensor as a numpy.ndarray on the same memory, read-only if the tensor is. bfloat16 and the 8-bit
/// floats become the types of ml_dtypes; throws unsupported without that package. Imports numpy.
/// REQUIRES: the GIL.
nb::object to_numpy(const Tensor& tensor);

}  // namespace onecopy::python
