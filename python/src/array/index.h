// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "binding/module.h"
#include "onecopy/memory/tensor.h"

namespace onecopy::python {

/// The part of a tensor that `key` names in Python's way: ints, slices with positive steps, `...`, None, and tuples
/// of those. Shares the memory. Raises IndexError for an index out of range, TypeError for other keys. REQUIRES: the
/// GIL.
Tensor part(const Tensor& tensor, nb::handle key);

}  // namespace onecopy::python
