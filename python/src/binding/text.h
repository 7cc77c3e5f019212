// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "binding/module.h"
#include "onecopy/memory/tensor.h"

/// Elements as Python and people read them. REQUIRES: the GIL, memory of the cpu.
namespace onecopy::python {

/// Nested lists of numbers; one number for a 0-d tensor.
nb::object to_list(const Tensor& tensor);
/// The text of repr(): the layout, and the elements if they are few.
std::string to_text(const Tensor& tensor);

}  // namespace onecopy::python
