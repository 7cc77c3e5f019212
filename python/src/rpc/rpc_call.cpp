// SPDX-License-Identifier: Apache-2.0
#include "rpc/rpc_call.h"

#include "binding/gil.h"
#include "binding/kept.h"
#include "rpc/workers.h"

namespace onecopy::python {

void wait_for(rpc::Node& node, const rpc::CallRef& call) {
  if (call->is_done()) return;
  while (!without_gil([&] { return node.wait(call, kForever); })) {
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    drain_decrefs();
    rpc::Workers::help(node);
  }
}

void RpcCall::wait() { wait_for(*node_, call_); }

bool RpcCall::is_done() {
  return call_->is_done() || without_gil([&] { return node_->has_ended(call_); });
}

// The call may have an owner already: the Future, or an outcome.
bool RpcCall::want(nb::handle future) {
  if (call_->is_done()) return false;
  void* none = nullptr;
  if (call_->owner.compare_exchange_strong(none, future.ptr())) Py_INCREF(future.ptr());
  return node_->want(call_);
}

bool RpcCall::end() { return node_->end_call(call_, rpc::End::cancelled); }

void RpcCall::complete() { node_->complete(call_, rpc::End::answered); }

void init_rpc_call(nb::module_& m) {
  nb::class_<RpcCall>(m, "_RpcCall")
      .def_prop_ro("number", &RpcCall::number)
      .def_prop_ro("done", &RpcCall::is_done)
      .def_prop_ro("member", &RpcCall::member)
      .def("wait", &RpcCall::wait)
      .def("want", &RpcCall::want, nb::arg("future"))
      .def("end", &RpcCall::end)
      .def("complete", &RpcCall::complete);
}

}  // namespace onecopy::python
