// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "binding/module.h"

namespace onecopy::python {

/// Whether this thread is in a context of distributed autograd: tensors that cross then are recorded.
/// Thread safety: the GIL.
bool has_rpc_context() noexcept;

void init_rpc_context(nb::module_& m);

}  // namespace onecopy::python
