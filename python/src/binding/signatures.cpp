// SPDX-License-Identifier: Apache-2.0
#include "binding/module.h"

namespace onecopy::python {
namespace {

/// Returns the dict of a type, which Python only shows through a read-only proxy.
nb::object namespace_of(nb::handle type) {
  return nb::module_::import_("gc").attr("get_referents")(type.attr("__dict__"))[0];
}

/// Adds a property __signature__ to one of nanobind's function types, which refuse setattr() as built-in types do.
void add_signature(PyTypeObject* type, nb::object (*signature)(nb::handle)) {
  const nb::object getter = nb::cpp_function(signature, nb::arg("function"));
  const nb::object property = nb::handle(reinterpret_cast<PyObject*>(&PyProperty_Type))(getter);
  namespace_of(reinterpret_cast<PyObject*>(type))["__signature__"] = property;
  PyType_Modified(type);
}

nb::object of_function(nb::handle function) {
  return nb::module_::import_("onecopy.binding.signatures").attr("of_function")(function);
}

nb::object of_bound(nb::handle method) {
  return nb::module_::import_("onecopy.binding.signatures").attr("of_bound")(method);
}

}  // namespace

/// Defines __signature__, which inspect.signature(), Jupyter and help() read and nanobind does not define.
void init_signatures(nb::module_& m) {
  add_signature(Py_TYPE(nb::object(m.attr("share")).ptr()), &of_function);
  add_signature(Py_TYPE(nb::object(m.attr("Queue").attr("put")).ptr()), &of_function);
  add_signature(Py_TYPE(nb::object(m.attr("Message")().attr("__repr__")).ptr()), &of_bound);
}

}  // namespace onecopy::python
