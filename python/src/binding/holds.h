// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "binding/module.h"
#include "onecopy/memory/tensor.h"

namespace onecopy::python {

/// Bytes of a handle that can be opened once, as long as this process lives. In the order of the current stream. Needs
/// the GIL.
nb::bytes share_held(const Tensor& tensor);

}  // namespace onecopy::python
