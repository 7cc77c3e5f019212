// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "binding/device.h"
#include "binding/module.h"
#include "onecopy/memory/tensor.h"

namespace onecopy::python {

inline Tensor own_copy(const Tensor& tensor) { return copied_to(tensor, tensor.device()); }

/// Adds the methods that exchange a tensor with other libraries, and from_dlpack().
void init_exchange(nb::class_<Tensor>& c, nb::module_& m);

}  // namespace onecopy::python
