// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "binding/module.h"
#include "onecopy/memory/tensor.h"

/// Exchanges arrays by DLPack with Python objects. REQUIRES: the GIL.
namespace onecopy::python {

/// Returns the tensor as a capsule. A `versioned` capsule also says whether the memory may be written and, if `copied`,
/// that only the consumer uses it. Raises BufferError for tensors that cannot be exported.
nb::object to_capsule(const Tensor& tensor, bool versioned, bool copied);

/// Imports the array of object.__dlpack__(), on memory of the other library, or of onecopy if the array lies in it.
/// Raises the object's exceptions. REQUIRES: the object has __dlpack__.
Tensor from_dlpack_object(nb::handle object, const char* argument);

}  // namespace onecopy::python
