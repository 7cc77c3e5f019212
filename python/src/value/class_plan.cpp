// SPDX-License-Identifier: Apache-2.0
#include "value/class_plan.h"

#include "binding/gil.h"

namespace onecopy::python {
namespace {

/// Returns the value of a key, or null, faster than PyDict_GetItem().
PyObject* look_up(PyObject* dict, PyObject* key) {
  PyObject* const found = PyDict_GetItemWithError(dict, key);
  if (!found && PyErr_Occurred()) PyErr_Clear();
  return found;
}

}  // namespace

bool ClassPlan::is_good() const { return look_up(item(3), item(4)) == item(6); }

ClassPlan ClassPlan::of_class(nb::handle classes, PyTypeObject* type) {
  if (!classes.is_valid()) return ClassPlan();
  auto* const key = reinterpret_cast<PyObject*>(type);
  PyObject* const known = NB_TUPLE_GET_ITEM(classes.ptr(), 1);
  PyObject* found = look_up(known, key);
  if (!found) {
    const nb::handle make(NB_TUPLE_GET_ITEM(classes.ptr(), 0));
    call_python([&] { make(nb::handle(key)); });
    found = look_up(known, key);
  }
  if (!found || found == Py_None) return ClassPlan();
  const ClassPlan plan(found);
  return plan.is_good() ? plan : ClassPlan();
}

ClassPlan ClassPlan::of_name(nb::handle classes, std::string_view kind, nb::handle name) {
  const bool is_planned = kind == "record" || kind == "enum" || kind == "namedtuple";
  if (!is_planned || !classes.is_valid() || !PyTuple_CheckExact(name.ptr())) return ClassPlan();
  PyObject* const known = NB_TUPLE_GET_ITEM(classes.ptr(), 2);
  if (PyObject* const found = look_up(known, name.ptr()))
    if (const ClassPlan plan(found); plan.kind() == kind && plan.is_good()) return plan;
  const nb::handle make(NB_TUPLE_GET_ITEM(classes.ptr(), 3));
  call_python([&] { make(nb::str(kind.data(), kind.size()), name); });
  return ClassPlan(look_up(known, name.ptr()));
}

std::string_view ClassPlan::kind() const {
  Py_ssize_t size = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(item(0), &size);
  return {text, static_cast<std::size_t>(size)};
}

// `parts` is (kind, name, part, ...).
nb::object ClassPlan::make(nb::handle parts) const {
  const std::string_view kind = this->kind();
  const Py_ssize_t count = NB_TUPLE_GET_SIZE(parts.ptr());
  PyObject* const first = count < 3 ? Py_None : NB_TUPLE_GET_ITEM(parts.ptr(), 2);
  if (kind == "record") return count == 3 && PyDict_CheckExact(first) ? make_record(first) : nb::object();
  if (kind == "enum") {
    PyObject* const member = count == 3 ? look_up(item(5), first) : nullptr;
    return member ? nb::borrow(member) : nb::object();
  }
  const nb::object items = nb::steal(PyTuple_GetSlice(parts.ptr(), 2, count));
  return call_python([&] { return owned(PyObject_Call(type(), items.ptr(), nullptr)); });
}

/// Makes a record as object.__new__() and object.__setattr__() do. The plan's own string of a name is found faster than
/// an equal one.
nb::object ClassPlan::make_record(PyObject* values) const {
  static const auto make_object = reinterpret_cast<newfunc>(PyType_GetSlot(&PyBaseObject_Type, Py_tp_new));
  static PyObject* const no_arguments = PyTuple_New(0);
  nb::object made = owned(make_object(reinterpret_cast<PyTypeObject*>(type()), no_arguments, nullptr));
  PyObject *key, *value;
  Py_ssize_t position = 0;
  const Py_ssize_t count = NB_TUPLE_GET_SIZE(fields());
  for (Py_ssize_t at = 0; PyDict_Next(values, &position, &key, &value); ++at) {
    PyObject* const field = at < count ? NB_TUPLE_GET_ITEM(fields(), at) : key;
    const bool is_own = key == field || (PyUnicode_CheckExact(key) && PyUnicode_Compare(key, field) == 0);
    if (PyObject_GenericSetAttr(made.ptr(), is_own ? field : key, value) < 0) throw nb::python_error();
  }
  return made;
}

}  // namespace onecopy::python
