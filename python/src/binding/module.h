// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

/// The extension module onecopy._core: one init_<topic> a file, called in this order.
namespace onecopy::python {

namespace nb = nanobind;

/// Returns the new reference of a C API call, or throws its Python exception.
inline nb::object owned(PyObject* object) {
  if (!object) throw nb::python_error();
  return nb::steal(object);
}

/// Raises a Python exception. A null object stands for the exception that is set.
[[noreturn]] inline void raise(const nb::object& error) {
  if (error.is_valid()) PyErr_SetObject(error.type().ptr(), error.ptr());
  throw nb::python_error();
}

/// Returns a list of the items, each converted to Python.
nb::list list_of(const auto& items) {
  nb::list list;
  for (const auto& item : items) list.append(item);
  return list;
}

template <class Type>
int gc_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return nb::inst_ready(self) ? nb::inst_ptr<Type>(self)->traverse(visit, arg) : 0;
}

template <class Type>
int gc_clear(PyObject* self) {
  if constexpr (requires(Type & object) { object.clear(); })
    if (nb::inst_ready(self)) nb::inst_ptr<Type>(self)->clear();
  return 0;
}

/// The slots by which the garbage collector visits the objects that a `Type` refers to, and breaks cycles at a type that
/// has clear().
template <class Type>
inline PyType_Slot gc_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&gc_traverse<Type>)},
                                 {Py_tp_clear, reinterpret_cast<void*>(&gc_clear<Type>)},
                                 {0, nullptr}};

void init_errors(nb::module_& m);
void init_log(nb::module_& m);
void init_kept(nb::module_& m);
void init_no_collection(nb::module_& m);
void init_buffer(nb::module_& m);
void init_device(nb::module_& m);
void init_tensor(nb::module_& m);
void init_create(nb::module_& m);
void init_handles(nb::module_& m);
void init_share(nb::module_& m);
void init_holds(nb::module_& m);
void init_open(nb::module_& m);
void init_copies(nb::module_& m);
void init_pin(nb::module_& m);
void init_bundle(nb::module_& m);
void init_load(nb::module_& m);
void init_stats(nb::module_& m);
void init_torch(nb::module_& m);
void init_values(nb::module_& m);
void init_message(nb::module_& m);
void init_queue(nb::module_& m);
void init_pipe(nb::module_& m);
void init_listener(nb::module_& m);
void init_autograd(nb::module_& m);
void init_graph(nb::module_& m);
void init_rpc(nb::module_& m);
void init_store(nb::module_& m);
void init_signatures(nb::module_& m);

}  // namespace onecopy::python
