// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "binding/module.h"

namespace onecopy::python {

/// Whether this thread is in a context of distributed autograd: tensors that cross then are recorded.
/// Thread safety: the GIL.
bool has_rpc_context() noexcept;
/// The context, or None.
nb::object current_context();
/// Makes `context`, or None, the context of this thread. Returns the one before.
nb::object swap_context(nb::object context);

/// Makes a context, or None, the context of this thread for a block.
class ContextScope {
 public:
  explicit ContextScope(nb::object context) : before_(swap_context(std::move(context))) {}
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
  ~ContextScope() { swap_context(std::move(before_)); }

 private:
  nb::object before_;
};

void init_rpc_context(nb::module_& m);

}  // namespace onecopy::python
