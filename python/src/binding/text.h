// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "binding/module.h"
#include "onecopy/memory/tensor.h"

/// Converts elements to Python numbers and to text. REQUIRES: the GIL, memory of the cpu.
namespace onecopy::python {

/// Returns nested lists of numbers, or a number for a 0-d tensor.
nb::object to_list(const Tensor& tensor);
/// Returns the text of repr(): the layout, and the elements if they are few.
std::string to_text(const Tensor& tensor);

}  // namespace onecopy::python
