// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "binding/bytes.h"
#include "binding/gil.h"
#include "rpc/python_endpoint.h"
#include "rpc/times.h"
#include "torch/torch.h"

namespace onecopy::python {
namespace {

bool wait_for_served(PythonEndpoint& endpoint, int max, double seconds) {
  const auto left = std::chrono::duration<double>(seconds);
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::nanoseconds>(left);
  return without_gil([&] { return endpoint.served.wait_for(max, until); });
}

nb::object share_tensor(nb::handle tensor) {
  auto shared = torch::share(tensor.ptr());
  if (!shared) return nb::none();
  return nb::make_tuple(nb::cast(std::move(shared->tensor)), shared->flags);
}

/// Returns the arguments of a call as the callee would read them.
nb::object decode_call(const nb::bytes& data) {
  const nb::object value = decode_value(span_of(data), {}, open_tensor, {Tensors::are_copied});
  const CallValues values = arguments_of(value);
  return nb::make_tuple(values.args, values.kwargs);
}

/// Returns the bytes for decode_call(), or None for arguments that need more than bytes.
nb::object encode_call(nb::tuple args) {
  Message message;
  TensorCounts counts;
  if (!encode_for_program(nb::make_tuple(args, nb::none()), message, counts) || !message.tensors.empty())
    return nb::none();
  return to_python(message.data);
}

void def_calls(nb::class_<PythonEndpoint>& endpoint) {
  endpoint
      .def("call", &PythonEndpoint::call, nb::arg("to").none(), nb::arg("function").none(),
           nb::arg("args").none(), nb::arg("kwargs").none(), nb::arg("timeout").none(),
           nb::arg("is_native") = false)
      .def("begin", &PythonEndpoint::begin, nb::arg("to").none(), nb::arg("function").none(),
           nb::arg("args").none(), nb::arg("kwargs").none(), nb::arg("timeout").none(),
           nb::arg("reference").none(), nb::arg("future"))
      .def("begin_native", &PythonEndpoint::begin_native, nb::keep_alive<0, 1>(), nb::arg("to"),
           nb::arg("function"), nb::arg("args").none(), nb::arg("kwargs").none(), nb::arg("timeout").none(),
           nb::arg("future"), nb::arg("is_stream"))
      .def("call_verb", &PythonEndpoint::call_verb, nb::arg("to"), nb::arg("verb"), nb::arg("args"),
           nb::arg("seconds"), nb::arg("is_result") = false)
      .def("begin_verb", &PythonEndpoint::begin_verb, nb::arg("to"), nb::arg("verb"), nb::arg("args"),
           nb::arg("seconds"), nb::arg("is_result"), nb::arg("reference").none(), nb::arg("future"))
      .def("call_gradients", &PythonEndpoint::call_gradients, nb::arg("to"), nb::arg("args"))
      .def("begin_gradients", &PythonEndpoint::begin_gradients, nb::arg("to"), nb::arg("args"))
      .def("note", &PythonEndpoint::note, nb::arg("to"), nb::arg("verb"), nb::arg("value").none())
      .def("run_soon", &PythonEndpoint::run_soon, nb::arg("task"))
      .def(
          "outcome",
          [](PythonEndpoint& e, const RpcCall& call, double seconds) {
            return e.outcome(call.call(), seconds);
          },
          nb::arg("call"), nb::arg("seconds"))
      .def("answer", &PythonEndpoint::answer_member, nb::arg("to"), nb::arg("call"),
           nb::arg("result").none())
      .def("fail", &PythonEndpoint::fail, nb::arg("to"), nb::arg("call"), nb::arg("kind"), nb::arg("text"),
           nb::arg("code"))
      .def(
          "native_deadline",
          [](const PythonEndpoint& e, nb::handle timeout) {
            const auto [seconds, deadline] = e.native_deadline(timeout);
            return nb::make_tuple(seconds, to_seconds(deadline));
          },
          nb::arg("timeout").none());
}

void def_members(nb::class_<PythonEndpoint>& endpoint) {
  endpoint.def("address", &PythonEndpoint::address)
      .def("join", &PythonEndpoint::join, nb::arg("address"), nb::arg("is_program") = false)
      .def("number_of", &PythonEndpoint::number_of, nb::arg("to").none())
      .def("is_far", &PythonEndpoint::is_far, nb::arg("number"))
      .def("has_left", &PythonEndpoint::has_left, nb::arg("number"))
      .def(
          "transport",
          [](PythonEndpoint& e, std::uint32_t number) {
            return std::string(e.node().find(number)->transport->name());
          },
          nb::arg("number"))
      .def(
          "takes_cards",
          [](PythonEndpoint& e, std::uint32_t number) {
            const rpc::Connection* const out = e.node().find(number)->out;
            return out && out->takes_cards();
          },
          nb::arg("number"))
      .def(
          "may_return",
          [](PythonEndpoint& e, std::uint32_t number, double seconds) {
            return without_gil(
                [&] { return e.node().may_return(*e.node().find(number), deadline_after(seconds)); });
          },
          nb::arg("number"), nb::arg("seconds"))
      .def("is_gone", &PythonEndpoint::is_gone, nb::arg("number"))
      .def("session_with", &PythonEndpoint::session_with, nb::arg("number"))
      .def("connect", &PythonEndpoint::connect, nb::arg("number"), nb::arg("seconds"))
      .def("routes", &PythonEndpoint::routes, nb::arg("to"))
      .def("set_devices", &PythonEndpoint::set_devices, nb::arg("of"), nb::arg("of_calls"),
           nb::arg("of_answers"), nb::arg("numbers_agree"), nb::arg("is_automatic"))
      .def("look", [](PythonEndpoint& e) { without_gil([&] { e.node().look_once(); }); })
      .def("run", [](PythonEndpoint& e) { without_gil([&] { e.run(); }); })
      .def("stop", &PythonEndpoint::stop)
      .def_prop_ro("calls_under_way", [](PythonEndpoint& e) { return e.node().calls_under_way(); })
      .def_prop_ro("idle_workers", [](PythonEndpoint& e) { return e.node().idle_workers(); })
      .def_prop_ro("serving", [](const PythonEndpoint& e) { return e.served.count(); })
      .def("wait_for_served", &wait_for_served, nb::arg("max"), nb::arg("seconds"))
      .def_rw("timeout", &PythonEndpoint::usual_timeout);
}

/// Defines the reports on limits, times and running calls.
void def_reports(nb::class_<PythonEndpoint>& endpoint) {
  endpoint
      .def(
          "set_limit", [](PythonEndpoint& e, std::size_t max, bool refuses) { e.limit.set(max, refuses); },
          nb::arg("max"), nb::arg("refuses"))
      .def("limits", [](const PythonEndpoint& e) { return e.limit.report(); })
      .def("times_called", [](const PythonEndpoint& e) { return e.called.reports(); })
      .def("times_served", [](const PythonEndpoint& e) { return e.served_times.reports(); })
      .def("calls", &PythonEndpoint::calls)
      .def("trace_of", &PythonEndpoint::trace_of, nb::arg("caller"), nb::arg("number"))
      .def(
          "cancel",
          [](PythonEndpoint& e, std::uint32_t caller, std::uint64_t number) {
            e.running.cancel(caller, number);
          },
          nb::arg("caller"), nb::arg("number"));
}

}  // namespace

void init_rpc(nb::module_& m) {
  init_outgoing_refs(m);
  init_running_call(m);
  init_rpc_call(m);
  init_native_calls(m);
  m.def("_rpc_host", &rpc::this_host,
        "A number of this boot and these namespaces: processes of one reach each other's memory.");
  m.def("_share_tensor", &share_tensor, nb::arg("tensor"),
        "Returns (onecopy.Tensor, flags) of a torch tensor on the same memory; None for one that cannot be "
        "shared.");
  m.def(
      "_open_tensor", [](const Tensor& tensor, std::uint32_t flags) { return open_tensor(tensor, flags); },
      nb::arg("tensor"), nb::arg("flags"), "Returns the torch tensor of which _share_tensor() made them.");
  m.def("_decode_call", &decode_call, nb::arg("data"));
  m.def("_encode_call", &encode_call, nb::arg("args"));
  nb::class_<PythonEndpoint> endpoint(
      m, "_RpcEndpoint", nb::type_slots(gc_slots<PythonEndpoint>),
      "This process as a member of a group; see python/src/rpc/python_endpoint.h.");
  endpoint.def(
      "__init__",
      [](PythonEndpoint* self, nb::object agent, nb::handle values, const std::string& name,
         std::uint32_t number, const std::string& transport) {
        new (self) PythonEndpoint(std::move(agent),
                                  {values.attr("reduce"), values.attr("rebuild"), values.attr("CLASSES")},
                                  name, number, transport);
      },
      nb::arg("agent"), nb::arg("values"), nb::arg("name"), nb::arg("number"), nb::arg("transport"),
      "`values`: the module onecopy.rpc.values.");
  def_calls(endpoint);
  def_members(endpoint);
  def_reports(endpoint);
}

}  // namespace onecopy::python
