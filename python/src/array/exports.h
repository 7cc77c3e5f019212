// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "onecopy/memory/tensor.h"

/// Our blocks that other libraries see through DLPack or the buffer protocol. They are found again by address, so
/// that sharing an array of numpy or jax that lies in one costs no copy. Thread safety: all functions may be called
/// concurrently, with or without the GIL.
namespace onecopy::python {

/// The tensor on a reference that is counted here, to be exported. Memory of other libraries comes back as it is.
Tensor exported(const Tensor& tensor);

/// The array as a tensor on our block that it lies in; empty if there is none, or it was never exported.
std::optional<Tensor> find_exported(const TensorView& view);

}  // namespace onecopy::python
