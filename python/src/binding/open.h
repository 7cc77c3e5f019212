// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "binding/args.h"
#include "binding/module.h"
#include "onecopy/memory/tensor.h"
#include "onecopy/share/handle.h"
#include "torch/torch.h"

/// Our tensors as the arrays of a library. REQUIRES: the GIL.
namespace onecopy::python {

/// A torch tensor on the tensor's memory. `flags` of the torch bridge tell its properties when it was shared. Imports
/// torch.
nb::object to_torch(const Tensor& tensor);

/// The tensor as the framework's array. `flags` are those of the torch bridge, 0 if it was no torch tensor. Throws
/// unsupported for tensors that only torch can express: lazily conjugated and negated ones.
nb::object open_as(const Tensor& tensor, Framework framework, std::uint32_t flags = 0);

/// A Handle, its bytes, or its text. Raises TypeError naming the argument.
Handle handle_arg(nb::handle value, const char* argument);

}  // namespace onecopy::python
