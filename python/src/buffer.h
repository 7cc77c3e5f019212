// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

namespace onecopy::python {

/// Slots of onecopy.Tensor for the buffer protocol: what memoryview() and numpy look through. bfloat16
/// and the 8-bit floats have no format there and are refused (BufferError).
extern const PyType_Slot kBufferSlots[];

}  // namespace onecopy::python
