// SPDX-License-Identifier: Apache-2.0
#include "rpc/outgoing_refs.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>

#include "binding/gil.h"
#include "onecopy/core/error.h"

namespace onecopy::python {

ThreadState& this_thread() noexcept {
  static thread_local ThreadState state;
  return state;
}

namespace {

[[noreturn]] void refuse_outside() {
  PyErr_SetString(PyExc_RuntimeError,
                  "an RRef, or a tensor that is lent or given away, crosses in calls only");
  throw nb::python_error();
}

rpc::Route route_named(const std::string& name) {
  const auto at = std::find(rpc::kRouteNames.begin(), rpc::kRouteNames.end(), name);
  if (at == rpc::kRouteNames.end()) throw Error(ErrorCode::invalid_argument, "there is no such route");
  return static_cast<rpc::Route>(at - rpc::kRouteNames.begin());
}

}  // namespace

OutgoingRefs& OutgoingRefs::current() {
  OutgoingRefs* const current = this_thread().outgoing;
  if (!current) refuse_outside();
  return *current;
}

void OutgoingRefs::sent() {
  if (has_tensors_)
    for (std::size_t i = 0; i < routes_.size(); ++i)
      receiver_.count(static_cast<rpc::Route>(i), routes_[i]);
  references_.clear();
  recorded_ = {};
  if (moved_.empty()) return;
  for (const nb::object& marked : std::exchange(moved_, {})) marked.attr("finish")();
}

void OutgoingRefs::take_back() noexcept {
  try {
    const std::pair recorded = std::exchange(recorded_, {});
    if (recorded.first.is_valid())
      call_python([&] { recorded.first.attr("forget_sent")(recorded.second); });
    if (references_.empty()) return;
    nb::list given;
    for (const auto& [reference, fork] : std::exchange(references_, {}))
      given.append(nb::make_tuple(reference, fork));
    call_python([&] { agent_.attr("references").attr("take_back")(given, receiver()); });
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("the references of a message that was not sent");
  }
}

nb::object IncomingMessage::current() {
  const IncomingMessage* const current = this_thread().incoming;
  if (!current) refuse_outside();
  return nb::make_tuple(current->agent_, current->sender_);
}

void init_outgoing_refs(nb::module_& m) {
  nb::class_<OutgoingRefs>(m, "_RpcGiving",
                           "What the message that is being written gives away; good until it is written.")
      .def_prop_ro("agent", &OutgoingRefs::agent)
      .def_prop_ro("receiver", &OutgoingRefs::receiver)
      .def_prop_ro("is_result", &OutgoingRefs::is_result)
      .def("give", &OutgoingRefs::give, nb::arg("reference"), nb::arg("fork"))
      .def("move", &OutgoingRefs::move, nb::arg("marked"))
      .def(
          "count", [](OutgoingRefs& g, const std::string& route) { g.count(route_named(route), 1); },
          nb::arg("route"));
  m.def("_rpc_giving", &OutgoingRefs::current, nb::rv_policy::reference);
  m.def("_rpc_taking", &IncomingMessage::current,
        "(agent, number of the sender) of the message that is being read.");
}

}  // namespace onecopy::python
