// SPDX-License-Identifier: Apache-2.0
#include "array/numpy.h"

#include <nanobind/stl/string.h>

#include <string>
#include <string_view>
#include <vector>

#include "array/buffer.h"
#include "array/dtype.h"
#include "binding/args.h"
#include "binding/device.h"
#include "core/throw_error.h"

namespace onecopy::python {
namespace {

nb::object ml_dtype(DType dtype) {
  const std::string name(onecopy::name(dtype));
  try {
    return nb::module_::import_("ml_dtypes").attr(name.c_str());
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_ImportError) && !error.matches(PyExc_AttributeError)) throw;
  }
  throw_error(ErrorCode::unsupported,
              "numpy has no {} of its own; install the package ml_dtypes, which adds it, or use .torch()",
              name);
}

/// Returns the elements as unsigned ints, which numpy supports.
Tensor as_bits(const Tensor& tensor) {
  const DType bits = size_of(tensor.dtype()) == 1 ? DType::u8 : DType::u16;
  return {tensor.block(), tensor.data(), Layout(bits, tensor.shape(), tensor.strides()), tensor.device(),
          tensor.access()};
}

/// The number of bytes below which a pickle costs less than a block of shared memory.
constexpr std::size_t kSmallest = std::size_t{64} << 10;

/// Returns whether the elements are numbers of a tensor's dtype in this machine's byte order.
bool has_plain_elements(nb::handle array) {
  const nb::object dtype = array.attr("dtype");
  if (!nb::cast<bool>(dtype.attr("isnative"))) return false;
  return parse_dtype(nb::cast<std::string>(dtype.attr("name"))).has_value();
}

bool is_column_major(nb::handle array) {
  const nb::object flags = array.attr("flags");
  return nb::cast<bool>(flags.attr("f_contiguous")) && !nb::cast<bool>(flags.attr("c_contiguous"));
}

/// Returns a view with the dimensions in reverse order.
Tensor transposed(const Tensor& tensor) {
  std::vector<std::int64_t> shape(tensor.shape().rbegin(), tensor.shape().rend());
  std::vector<std::int64_t> strides(tensor.strides().rbegin(), tensor.strides().rend());
  return tensor.with_layout(Layout(tensor.dtype(), std::move(shape), std::move(strides)));
}

}  // namespace

std::optional<SharedArray> SharedArray::of(PyObject* object) {
  if (!is_ndarray(object) || !has_plain_elements(object)) return std::nullopt;
  std::optional<Source> source = Source::of(object, "obj");
  if (source->ours()) return SharedArray(*std::move(source), false);
  if (nb::cast<std::size_t>(nb::handle(object).attr("nbytes")) < kSmallest) return std::nullopt;
  if (!is_column_major(object)) return SharedArray(*std::move(source), false);
  return SharedArray(*Source::of(nb::handle(object).attr("T"), "obj"), true);
}

Tensor SharedArray::tensor() const {
  const Tensor shared = source_.shared();
  return is_transposed_ ? transposed(shared) : shared;
}

#if defined(Py_LIMITED_API)

/// Returns numpy.ndarray, or null if numpy is not imported. The stable ABI gives no access to names of types.
static PyTypeObject* imported_ndarray() noexcept {
  static PyObject* const name = PyUnicode_InternFromString("numpy");       // each put() asks
  PyObject* const numpy = PyDict_GetItem(PyImport_GetModuleDict(), name);  // borrowed
  PyObject* const type = numpy ? PyObject_GetAttrString(numpy, "ndarray") : nullptr;
  PyErr_Clear();
  return reinterpret_cast<PyTypeObject*>(type);  // kept for ever
}

bool is_ndarray(PyObject* object) noexcept {
  static PyTypeObject* known = nullptr;
  if (!known) known = imported_ndarray();
  return Py_TYPE(object) == known;
}

#else

bool is_ndarray(PyObject* object) noexcept {
  return Py_TYPE(object)->tp_name == std::string_view("numpy.ndarray");
}

#endif

bool is_read_only_array(PyObject* object) {
  return is_ndarray(object) && !nb::cast<bool>(nb::handle(object).attr("flags").attr("writeable"));
}

bool is_numpy_scalar(nb::handle value) {
  const nb::object numpy = nb::module_::import_("sys").attr("modules").attr("get")("numpy");
  return !numpy.is_none() && PyObject_IsInstance(value.ptr(), numpy.attr("generic").ptr()) == 1;
}

nb::object to_numpy(const Tensor& tensor) {
  require_host(tensor, "numpy arrays lie in");
  const nb::object asarray = import_package("numpy", "a numpy.ndarray").attr("asarray");
  if (is_native_to_numpy(tensor.dtype())) return asarray(to_memoryview(tensor));
  const nb::object dtype = ml_dtype(tensor.dtype());
  return asarray(to_memoryview(as_bits(tensor))).attr("view")(dtype);
}

}  // namespace onecopy::python
