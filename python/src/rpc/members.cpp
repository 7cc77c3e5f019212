// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/string.h>

#include "binding/bytes.h"
#include "binding/gil.h"
#include "onecopy/core/error.h"
#include "rpc/python_endpoint.h"
#include "rpc/times.h"

/// The part of PythonEndpoint that keeps the members of the group.
namespace onecopy::python {

PythonEndpoint::PythonEndpoint(nb::object agent, Hooks hooks, const std::string& name, std::uint32_t number,
                               const std::string& transport)
    : agent_(std::move(agent)),
      hooks_(std::move(hooks)),
      node_(without_gil([&] {
        return std::make_shared<rpc::Node>(
            rpc::NodeOptions{.name = name, .number = number, .transport = transport});
      })),
      workers_(
          *node_, [this](rpc::Work& work) { with_gil([&] { handle(work); }); },
          [this] { with_gil([this] { add_worker(); }); }),
      is_logged_(agent_.attr("is_logged")) {}

PythonEndpoint::~PythonEndpoint() {
  clear();
  drop_without_gil([this] { node_.reset(); });
}

int PythonEndpoint::traverse(visitproc visit, void* arg) {
  for (const nb::object* one : {&agent_, &hooks_.reduce, &hooks_.rebuild, &hooks_.classes, &is_logged_})
    Py_VISIT(one->ptr());
  Py_VISIT(numbers_.ptr());
  for (const RemoteFunctions& table : remote_functions_)
    for (const auto& [function, known] : table) {
      Py_VISIT(function);
      for (const nb::object* one : {&known.names, &known.name, &known.check}) Py_VISIT(one->ptr());
    }
  for (const auto& callable : node_->functions().callables()) {
    const auto& local = *static_cast<const LocalFunction*>(callable.get());
    for (const nb::object* part : {&local.function, &local.names, &local.name, &local.prepare})
      Py_VISIT(part->ptr());
  }
  return 0;
}

void PythonEndpoint::clear() {
  for (RemoteFunctions& table : remote_functions_) {
    const RemoteFunctions dropped = std::exchange(table, {});
    for (const auto& [function, known] : dropped) Py_DECREF(function);
  }
  for (const auto& callable : node_->functions().callables())
    *static_cast<LocalFunction*>(callable.get()) = {};
  hooks_ = {};
  is_logged_.reset();
  agent_.reset();
}

nb::bytes PythonEndpoint::address() { return to_python(node_->address().to_bytes()); }

nb::object PythonEndpoint::join(const nb::bytes& address, bool is_program) {
  const rpc::Address where = rpc::Address::from_bytes(span_of(address));
  without_gil([&] { node_->join(where, is_program); });  // a program holds no references
  numbers_[where.name.c_str()] = where.number;
  codecs_[where.number].is_program = is_program;
  return nb::make_tuple(where.name, where.number, where.pid);
}

void PythonEndpoint::connect(std::uint32_t number, double seconds) {
  rpc::Member& to = member_to_call(number);
  without_gil([&] { node_->connect(to, deadline_after(seconds)); });
}

nb::dict PythonEndpoint::routes(std::uint32_t to) {
  nb::dict found;
  const auto& counts = member(to).counters.routes;
  for (std::size_t i = 0; i < counts.size(); ++i)
    if (const std::uint64_t tensors = counts[i].load(std::memory_order_relaxed))
      found[rpc::kRouteNames[i]] = tensors;
  return found;
}

void PythonEndpoint::set_devices(std::uint32_t of, const Cards& of_calls, const Cards& of_answers,
                                 bool numbers_agree, bool is_automatic) {
  PyTypeObject* const marked =
      reinterpret_cast<PyTypeObject*>(nb::object(agent_.attr("marked_type")).ptr());
  PeerCodec& codec = codecs_[of];
  codec.of_calls = {{of_calls, numbers_agree, is_automatic}, marked};
  codec.of_answers = {{of_answers, numbers_agree, is_automatic}, marked};
}

rpc::Member& PythonEndpoint::member(std::uint32_t number) {
  if (rpc::Member* const found = node_->find(number)) return *found;
  throw Error(ErrorCode::invalid_argument, "there is no such member of the group");
}

rpc::Member& PythonEndpoint::member_to_call(std::uint32_t number) {
  return node_->session_with(member(number));
}

/// Returns the member of a name, number or WorkerInfo. Asks the agent about ended members and unknown names.
rpc::Member& PythonEndpoint::member_for(nb::handle to) {
  nb::object number;
  if (PyUnicode_CheckExact(to.ptr())) {
    if (PyObject* const found = PyDict_GetItem(numbers_.ptr(), to.ptr())) number = nb::borrow(found);
  } else if (PyLong_CheckExact(to.ptr())) {
    number = nb::borrow(to);
  } else if (PyObject* const id = PyObject_GetAttrString(to.ptr(), "id")) {
    number = nb::steal(id);
  } else {
    PyErr_Clear();
  }
  if (number.is_valid() && PyLong_CheckExact(number.ptr())) {
    const long value = PyLong_AsLong(number.ptr());
    if (value == -1 && PyErr_Occurred()) PyErr_Clear();
    rpc::Member* const found = value < 0 ? nullptr : node_->find(static_cast<std::uint32_t>(value));
    if (found && !found->has_ended) return *found;
  }
  const nb::object known = call_python([&] { return nb::object(agent_.attr("member")(to)); });
  return member_to_call(nb::cast<std::uint32_t>(nb::object(known.attr("info").attr("id"))));
}

void PythonEndpoint::stop() {
  without_gil([&] { node_->stop(); });
}

}  // namespace onecopy::python
