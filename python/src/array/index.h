// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "binding/module.h"
#include "onecopy/memory/tensor.h"

namespace onecopy::python {

/// Returns the part of a tensor that `key` selects, on the same memory: an int, a slice with a positive step, `...`,
/// None, or a tuple of them. Raises IndexError for an index out of range, TypeError for other keys. REQUIRES: the GIL.
Tensor part(const Tensor& tensor, nb::handle key);

}  // namespace onecopy::python
