// SPDX-License-Identifier: Apache-2.0
#include "numpy.h"

#include <fmt/format.h>

#include "device.h"
#include "dtype.h"
#include "onecopy/core/error.h"

namespace onecopy::python {
namespace {

nb::object ml_dtype(DType dtype) {
  const std::string name(onecopy::name(dtype));
  try {
    return nb::module_::import_("ml_dtypes").attr(name.c_str());
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_ImportError) && !error.matches(PyExc_AttributeError)) throw;
  }
  throw Error(
      ErrorCode::unsupported,
      fmt::format("numpy has no {} of its own; install the package ml_dtypes, which adds it, or use "
                  ".torch()",
                  name));
}

/// The same bits as unsigned ints, which numpy has.
Tensor as_bits(const Tensor& tensor) {
  const DType bits = size_of(tensor.dtype()) == 1 ? DType::u8 : DType::u16;
  return {tensor.block(), tensor.data(), Layout(bits, tensor.shape(), tensor.strides()), tensor.device(),
          tensor.access()};
}

}  // namespace

bool is_numpy_scalar(nb::handle value) {
  const nb::object numpy = nb::module_::import_("sys").attr("modules").attr("get")("numpy");
  return !numpy.is_none() && PyObject_IsInstance(value.ptr(), numpy.attr("generic").ptr()) == 1;
}

nb::object to_numpy(const Tensor& tensor) {
  require_host(tensor, "numpy arrays lie in");
  const nb::object asarray = nb::module_::import_("numpy").attr("asarray");
  if (is_native_to_numpy(tensor.dtype())) return asarray(nb::cast(tensor));
  const nb::object dtype = ml_dtype(tensor.dtype());
  return asarray(nb::cast(as_bits(tensor))).attr("view")(dtype);
}

}  // namespace onecopy::python
