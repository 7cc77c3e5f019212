// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "onecopy/memory/tensor.h"

/// The blocks that other libraries access through DLPack or the buffer protocol. A table finds the block of an address,
/// so that sharing an array of numpy or jax in a block needs no copy. Thread safety: all functions may be called
/// concurrently, with or without the GIL.
namespace onecopy::python {

/// Returns the tensor on a reference that is counted here, to be exported. Returns a tensor on memory of another
/// library unchanged.
Tensor exported(const Tensor& tensor);

/// Returns the array as a tensor on the exported block that it lies in; empty if there is none.
std::optional<Tensor> find_exported(const TensorView& view);

}  // namespace onecopy::python
