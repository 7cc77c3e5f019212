// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "onecopy/memory/tensor.h"

/// Blocks of ours that other libraries look at, through DLPack or the buffer protocol. They are found
/// again by address, so that sharing an array of numpy or jax that lies in one costs no copy.
/// Thread safety: all functions may be called concurrently, with or without the GIL.
namespace onecopy::python {

/// The same tensor on a reference that is counted here: for giving out. Memory of other libraries is
/// none of our business and comes back as it is.
Tensor exported(const Tensor& tensor);

/// The array as a tensor on the block of ours that it lies in; nothing when there is none, or it was
/// never given out.
std::optional<Tensor> find_exported(const TensorView& view);

}  // namespace onecopy::python
