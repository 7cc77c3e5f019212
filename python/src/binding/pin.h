// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "onecopy/memory/tensor.h"

namespace onecopy::python {

// Thread safety: both are called with the GIL held.

/// Makes torch report its captures of graphs, during which pinned memory must not be released. A second call has no
/// effect, nor has a call before the program has imported torch.
void watch_captures();
/// Calls onecopy::pin() for `card`, or else for a card that this process uses.
void pin_here(const Tensor& tensor, std::optional<Device> card = {});

}  // namespace onecopy::python
