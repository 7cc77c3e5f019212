// SPDX-License-Identifier: Apache-2.0
#include "autograd/tensors.h"

#include "autograd/names.h"

namespace onecopy::python::autograd {
namespace {

bool is_strided(const nb::object& tensor) {
  return get(tensor, Names::get().layout).is(Names::get().strided);
}
bool is_sparse(const nb::object& tensor) {
  return get(tensor, Names::get().layout).is(Names::get().sparse_coo);
}

nb::object storage_of(const nb::object& tensor) { return call(tensor, Names::get().untyped_storage); }

std::uintptr_t number_from(const nb::object& value) {
  const std::size_t found = PyLong_AsSize_t(value.ptr());
  if (found == static_cast<std::size_t>(-1) && PyErr_Occurred()) throw nb::python_error();
  return found;
}

std::uintptr_t memory_of(const nb::object& gradient) {
  const Names& names = Names::get();
  if (is_strided(gradient)) return number_from(call(storage_of(gradient), names.data_ptr));
  if (is_sparse(gradient))
    return number_from(call(storage_of(call(gradient, names.values)), names.data_ptr));
  return reinterpret_cast<std::uintptr_t>(gradient.ptr());
}

/// Returns whether the tensor covers all of its memory, in row-major order.
bool owns_its_memory(const nb::object& gradient) {
  const Names& names = Names::get();
  const auto is_in_order = [&](const nb::object& tensor) {
    return is_true(call(tensor, names.is_contiguous));
  };
  if (is_sparse(gradient))
    return is_in_order(call(gradient, names.values)) && is_in_order(call(gradient, names.indices));
  return is_in_order(gradient) &&
         number_from(call(storage_of(gradient), names.nbytes)) == number_from(get(gradient, names.nbytes));
}

nb::object copy_of(const nb::object& gradient) {
  const Names& names = Names::get();
  if (!is_strided(gradient)) return call(gradient, names.clone);
  nb::dict format;
  format[names.memory_format] = names.contiguous_format;
  return call_python([&] { return nb::object(gradient.attr(names.clone)(**format)); });
}

}  // namespace

nb::object row_major(const nb::object& gradient) {
  if (gradient.is_none() || !is_strided(gradient)) return gradient;
  return call(gradient, Names::get().contiguous);
}

void MemoryUsers::add(const nb::object& gradient) {
  if (!gradient.is_none()) ++counts_[memory_of(gradient)];
}

nb::object MemoryUsers::own(const nb::object& gradient) const {
  const bool is_alone = counts_.at(memory_of(gradient)) == 1 && owns_its_memory(gradient);
  return call(is_alone ? gradient : copy_of(gradient), Names::get().detach);
}

}  // namespace onecopy::python::autograd
