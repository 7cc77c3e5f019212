// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "binding/module.h"

namespace onecopy::python {

/// A plan to write and to make the objects of a dataclass, a named tuple class or an enum without a call of Python
/// code.
///
/// onecopy.rpc.values.CLASSES is (plan_of, {class: plan or None}, {name of a class: plan}, plan_named). plan_of(class)
/// adds a plan to the second part, and plan_named(kind, name) to the third. A plan is (kind, class, its name, the names
/// of its module, the key in the module of the class or its outer class, the field names of a dataclass or {name:
/// member} of an enum, the value of the key).
/// Thread safety: used with the GIL held.
class ClassPlan {
 public:
  ClassPlan() = default;
  /// Returns the plan for objects of a class, or an empty plan if reduce() must be called. Throws the exceptions of
  /// plan_of().
  static ClassPlan of_class(nb::handle classes, PyTypeObject* type);
  /// Returns the plan for the class of that name, or an empty plan for objects of other kinds. Throws the exceptions of
  /// plan_named().
  static ClassPlan of_name(nb::handle classes, std::string_view kind, nb::handle name);

  explicit operator bool() const noexcept { return plan_ != nullptr; }
  std::string_view kind() const;
  PyObject* type() const { return item(1); }
  PyObject* name() const { return item(2); }
  /// Returns the names of the fields of a dataclass, as a tuple.
  PyObject* fields() const { return item(5); }
  /// Makes the object of these parts. Returns an invalid object for parts that rebuild() must check.
  nb::object make(nb::handle parts) const;

 private:
  explicit ClassPlan(PyObject* plan) noexcept : plan_(plan) {}
  PyObject* item(Py_ssize_t at) const { return NB_TUPLE_GET_ITEM(plan_, at); }
  /// Returns whether the name still stands for the class.
  bool is_good() const;
  nb::object make_record(PyObject* values) const;

  PyObject* plan_ = nullptr;  ///< owned by `classes`
};

}  // namespace onecopy::python
