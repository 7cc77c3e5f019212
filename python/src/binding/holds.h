// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "binding/module.h"
#include "onecopy/memory/tensor.h"

namespace onecopy::python {

/// Returns the bytes of a handle, in the order of the current stream, that can be opened once while this process lives.
/// REQUIRES: the GIL.
nb::bytes share_held(const Tensor& tensor);

}  // namespace onecopy::python
