// SPDX-License-Identifier: Apache-2.0
#include "rpc/context.h"

namespace onecopy::python {
namespace {

/// Kept while it is the thread's; a thread leaves its contexts before it ends.
thread_local PyObject* context = nullptr;

nb::object current() { return context ? nb::borrow(context) : nb::none(); }

void set(nb::object now) {
  const nb::object before = nb::steal(context);
  context = now.is_none() ? nullptr : now.release().ptr();
}

}  // namespace

bool has_rpc_context() noexcept { return context != nullptr; }

void init_rpc_context(nb::module_& m) {
  m.def("_rpc_context", &current, "This thread's context of distributed autograd, or None.");
  m.def("_set_rpc_context", &set, nb::arg("context").none());
}

}  // namespace onecopy::python
