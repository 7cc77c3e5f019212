// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "binding/module.h"
#include "onecopy/memory/tensor.h"

/// DLPack as Python objects exchange it. REQUIRES: the GIL.
namespace onecopy::python {

/// The tensor as a capsule; `versioned` also says whether it may be written, `copied` that nobody else
/// has the memory. Raises BufferError for what cannot be given out.
nb::object to_capsule(const Tensor& tensor, bool versioned, bool copied);

/// What object.__dlpack__() gives out, on the other library's memory, or on ours if it is that. Raises
/// what the object raises. REQUIRES: the object has __dlpack__.
Tensor from_dlpack_object(nb::handle object, const char* argument);

}  // namespace onecopy::python
