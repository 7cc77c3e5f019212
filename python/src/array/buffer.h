// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "binding/module.h"
#include "onecopy/memory/tensor.h"

namespace onecopy::python {

/// Returns a memoryview on the same memory. Raises BufferError for tensors on devices and for dtypes that the buffer
/// protocol lacks. REQUIRES: the GIL.
nb::object to_memoryview(const Tensor& tensor);

}  // namespace onecopy::python
