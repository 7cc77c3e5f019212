// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "binding/gil.h"
#include "binding/module.h"

namespace onecopy::python::autograd {

/// The names by which torch's graph and its tensors are read, and the objects of torch's that are compared or called,
/// looked up once.
///
/// Never destroyed. Thread safety: used with the GIL held.
struct Names {
  static const Names& get();

  PyTypeObject* leaf;     ///< the type of nodes that stand for leaves
  PyTypeObject* receive;  ///< the type of nodes that stand for received tensors
  nb::object gradient_edge, hook_finder, strided, sparse_coo, contiguous_format;

  nb::object next_functions, variable, backward_hooks, received, count, message_id, edges, input_metadata;
  nb::object layout, untyped_storage, data_ptr, nbytes, values, indices;
  nb::object contiguous, is_contiguous, clone, detach, memory_format, accumulate;
};

/// Returns object.name.
inline nb::object get(nb::handle object, const nb::object& name) {
  return call_python([&] { return owned(PyObject_GetAttr(object.ptr(), name.ptr())); });
}

/// Returns sequence[at].
inline nb::object item(nb::handle sequence, Py_ssize_t at) {
  return call_python([&] { return owned(PySequence_GetItem(sequence.ptr(), at)); });
}

/// Returns object.name(arguments...).
template <class... Arguments>
nb::object call(nb::handle object, const nb::object& name, Arguments&&... arguments) {
  return call_python([&] { return nb::object(object.attr(name)(std::forward<Arguments>(arguments)...)); });
}

/// Returns bool(object). Throws the exception of __bool__().
inline bool is_true(nb::handle object) {
  const int truth = call_python([&] { return PyObject_IsTrue(object.ptr()); });
  if (truth < 0) throw nb::python_error();
  return truth != 0;
}

}  // namespace onecopy::python::autograd
