// SPDX-License-Identifier: Apache-2.0
#include "rpc/context.h"

namespace onecopy::python {
namespace {

/// Kept while it is the thread's; a thread leaves its contexts before it ends.
thread_local PyObject* context = nullptr;

}  // namespace

bool has_rpc_context() noexcept { return context != nullptr; }

nb::object current_context() { return context ? nb::borrow(context) : nb::none(); }

nb::object swap_context(nb::object now) {
  nb::object before = context ? nb::steal(context) : nb::none();
  context = now.is_none() ? nullptr : now.release().ptr();
  return before;
}

void init_rpc_context(nb::module_& m) {
  m.def("_rpc_context", &current_context,
        "Returns this thread's context of distributed autograd, or None.");
  m.def("_swap_rpc_context", &swap_context, nb::arg("context").none(),
        "Makes a context, or None, the context of this thread. Returns the one before.");
}

}  // namespace onecopy::python
