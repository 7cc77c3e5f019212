// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "onecopy/memory/tensor.h"

namespace onecopy::python {

// Thread safety: both are called with the GIL held.

/// Has torch report its captures of graphs: a point in all work of a card spoils captures, and releases of pinned
/// memory need such points. Once; has no effect while the program has not imported torch.
void watch_captures();
/// onecopy::pin(), for `card` or else one that is in use here.
void pin_here(const Tensor& tensor, std::optional<Device> card = {});

}  // namespace onecopy::python
