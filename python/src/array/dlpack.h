// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "binding/module.h"
#include "onecopy/memory/tensor.h"

/// DLPack as Python objects exchange it. REQUIRES: the GIL.
namespace onecopy::python {

/// The tensor as a capsule. `versioned` capsules also tell whether it may be written, and, if `copied`, that the
/// consumer alone has the memory. Raises BufferError for tensors that cannot be exported.
nb::object to_capsule(const Tensor& tensor, bool versioned, bool copied);

/// The array of object.__dlpack__(), on the other library's memory, or on ours if it is that. Raises the object's
/// exceptions. REQUIRES: the object has __dlpack__.
Tensor from_dlpack_object(nb::handle object, const char* argument);

}  // namespace onecopy::python
