// SPDX-License-Identifier: Apache-2.0
#include "array/index.h"

#include <fmt/format.h>

#include <vector>

#include "binding/args.h"

namespace onecopy::python {
namespace {

[[noreturn]] void raise_index_error(const std::string& message) {
  PyErr_SetString(PyExc_IndexError, message.c_str());
  throw nb::python_error();
}

/// Applies the keys one after the other, from the first dimension to the last.
class Selection {
 public:
  explicit Selection(const Tensor& tensor) : tensor_(tensor) {}

  void take(nb::handle key) {
    if (key.is_none()) return add_dimension(1, 0);
    if (key.is(nb::handle(Py_Ellipsis))) return skip(rest_);
    if (PySlice_Check(key.ptr())) return take_slice(key);
    if (PyIndex_Check(key.ptr()) && !PyBool_Check(key.ptr())) return take_int(key);
    raise_type_error(fmt::format(
        "a tensor is indexed by ints, slices, ... and None, not by {}; .numpy() and .torch() know more",
        short_repr(key)));
  }

  /// Computes the number of dimensions that `...` stands for.
  void expect(std::size_t consuming) {
    if (consuming > tensor_.layout().ndim())
      raise_index_error(fmt::format("{} indices for {}, which has {} dimensions", consuming,
                                    tensor_.layout().str(), tensor_.layout().ndim()));
    rest_ = tensor_.layout().ndim() - consuming;
  }

  Tensor result() {
    skip(tensor_.layout().ndim() - dim_);
    Layout layout(tensor_.dtype(), shape_, strides_);
    // The first element of an empty part may lie past the end. An empty part starts where the tensor starts.
    const std::int64_t skipped = layout.numel() == 0 ? 0 : offset_;
    std::byte* const data =
        tensor_.as<std::byte>() + skipped * static_cast<std::int64_t>(size_of(tensor_.dtype()));
    return {tensor_.block(), data, std::move(layout), tensor_.device(), tensor_.access()};
  }

 private:
  void add_dimension(std::int64_t size, std::int64_t stride) {
    shape_.push_back(size);
    strides_.push_back(stride);
  }
  void skip(std::size_t dims) {
    for (; dims > 0; --dims, ++dim_) add_dimension(tensor_.shape()[dim_], tensor_.strides()[dim_]);
  }

  void take_int(nb::handle key) {
    const std::int64_t size = tensor_.shape()[dim_];
    Py_ssize_t at = PyNumber_AsSsize_t(key.ptr(), PyExc_IndexError);
    if (at == -1 && PyErr_Occurred()) throw nb::python_error();
    if (at < -size || at >= size)
      raise_index_error(
          fmt::format("index {} is out of range for dimension {} of {}", at, dim_, tensor_.layout().str()));
    offset_ += (at < 0 ? at + size : at) * tensor_.strides()[dim_++];
  }

  void take_slice(nb::handle key) {
    Py_ssize_t begin = 0, end = 0, step = 0;
    if (PySlice_Unpack(key.ptr(), &begin, &end, &step) < 0) throw nb::python_error();
    if (step < 0) {
      PyErr_SetString(PyExc_ValueError,
                      "slices of tensors have positive steps; reverse what .numpy() or .torch() gives");
      throw nb::python_error();
    }
    const Py_ssize_t count = PySlice_AdjustIndices(tensor_.shape()[dim_], &begin, &end, step);
    if (count > 0) offset_ += begin * tensor_.strides()[dim_];
    add_dimension(count, tensor_.strides()[dim_] * (count > 1 ? step : 1));
    ++dim_;
  }

  const Tensor& tensor_;
  std::size_t rest_ = 0;
  std::size_t dim_ = 0;
  std::int64_t offset_ = 0;  ///< elements
  std::vector<std::int64_t> shape_, strides_;
};

}  // namespace

Tensor part(const Tensor& tensor, nb::handle key) {
  const nb::tuple keys = PyTuple_Check(key.ptr()) ? nb::borrow<nb::tuple>(key) : nb::make_tuple(key);
  std::size_t consuming = 0;
  std::size_t ellipses = 0;
  for (const nb::handle one : keys) {
    if (one.is(nb::handle(Py_Ellipsis))) ++ellipses;
    else if (!one.is_none()) ++consuming;
  }
  if (ellipses > 1) raise_index_error("more than one ... in an index");
  Selection selection(tensor);
  selection.expect(consuming);
  for (const nb::handle one : keys) selection.take(one);
  return selection.result();
}

}  // namespace onecopy::python
