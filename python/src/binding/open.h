// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "binding/args.h"
#include "binding/module.h"
#include "onecopy/memory/tensor.h"
#include "onecopy/share/handle.h"
#include "torch/torch.h"

/// Converts tensors to the arrays of a library. REQUIRES: the GIL.
namespace onecopy::python {

/// Returns a torch tensor on the tensor's memory. Imports torch.
nb::object to_torch(const Tensor& tensor);

/// Returns the tensor as the framework's array. `flags` are torch::Flags, or 0 if it was not a torch tensor. Throws
/// unsupported for a lazily conjugated or negated tensor, which only torch can express.
nb::object open_as(const Tensor& tensor, Framework framework, std::uint32_t flags = 0);

/// Returns the handle of a Handle, its bytes, or its text. Raises TypeError with the argument's name.
Handle handle_arg(nb::handle value, const char* argument);

}  // namespace onecopy::python
