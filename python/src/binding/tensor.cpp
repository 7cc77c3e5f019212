// SPDX-License-Identifier: Apache-2.0
#include "onecopy/memory/tensor.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <algorithm>

#include "array/dtype.h"
#include "array/index.h"
#include "array/numbers.h"
#include "array/numpy.h"
#include "array/source.h"
#include "binding/args.h"
#include "binding/device.h"
#include "binding/module.h"
#include "binding/tensor_exchange.h"
#include "binding/text.h"
#include "core/throw_error.h"
#include "onecopy/share/share.h"
#include "torch/torch.h"

namespace onecopy::python {
namespace {

Py_ssize_t length(const Tensor& tensor) {
  if (tensor.layout().ndim() == 0) raise_type_error("len() of a 0-d tensor");
  return tensor.shape()[0];
}

nb::object item(const Tensor& tensor) {
  if (tensor.layout().numel() != 1)
    throw_error(ErrorCode::invalid_argument, "only a tensor of one element is a number; {} has {}",
                tensor.layout().str(), tensor.layout().numel());
  return to_number(tensor.dtype(), on_host(tensor).as<std::byte>());
}

/// Returns a 0-d tensor of ints as an int, and raises TypeError for others, as numpy does: bytes() and other callers
/// test whether an object is an index.
nb::object index(const Tensor& tensor) {
  if (tensor.layout().ndim() == 0)
    if (nb::object number = item(tensor); PyLong_CheckExact(number.ptr())) return number;
  raise_type_error("only a 0-d tensor of ints is an index, not " + tensor.layout().str());
}

// ---- layouts

/// Returns the given sizes, which are numbers or one sequence. Computes a size of -1 from the others.
std::vector<std::int64_t> shape_from(const Tensor& tensor, const nb::args& sizes) {
  const nb::object given = sizes.size() == 1 ? nb::object(sizes[0]) : nb::object(sizes);
  nb::list list;
  if (PyIndex_Check(given.ptr())) list.append(given);
  else list.extend(given);
  Py_ssize_t rest = -1;
  for (Py_ssize_t i = 0; i < NB_LIST_GET_SIZE(list.ptr()); ++i) {
    PyObject* const size = NB_LIST_GET_ITEM(list.ptr(), i);
    if (!PyLong_Check(size) || PyLong_AsLongLong(size) != -1 || PyErr_Occurred()) continue;
    if (rest >= 0)
      throw Error(ErrorCode::invalid_argument, "shape has more than one -1; only one size can be the rest");
    rest = i;
    PyList_SetItem(list.ptr(), i, PyLong_FromLong(1));
  }
  PyErr_Clear();  // a size is too large, for which shape_arg() raises the error
  std::vector<std::int64_t> shape = shape_arg(list, "shape");
  if (rest < 0) return shape;
  const std::int64_t others = Layout(tensor.dtype(), shape).numel();
  if (others > 0) shape[static_cast<std::size_t>(rest)] = tensor.layout().numel() / others;
  return shape;
}

void require_contiguous(const Tensor& tensor, const char* method) {
  if (tensor.layout().is_contiguous()) return;
  throw_error(ErrorCode::invalid_argument,
              "{} needs a contiguous tensor, and this one is {}; use .copy() first", method,
              tensor.layout().str());
}

Tensor reshape(const Tensor& tensor, const nb::args& sizes) {
  require_contiguous(tensor, "reshape()");
  Layout layout(tensor.dtype(), shape_from(tensor, sizes));
  if (layout.numel() != tensor.layout().numel())
    throw_error(ErrorCode::invalid_argument, "shape: {} has {} elements, and {} has {}", layout.str(),
                layout.numel(), tensor.layout().str(), tensor.layout().numel());
  return tensor.with_layout(std::move(layout));
}

/// Returns the bytes as elements of another type. The last dimension grows or shrinks with the element size.
Tensor reinterpret(const Tensor& tensor, DType dtype) {
  const auto from = static_cast<std::int64_t>(size_of(tensor.dtype()));
  const auto to = static_cast<std::int64_t>(size_of(dtype));
  if (from == to) return tensor.with_layout(Layout(dtype, tensor.shape(), tensor.strides()));
  require_contiguous(tensor, "view() with elements of another size");
  std::vector<std::int64_t> shape(tensor.shape().begin(), tensor.shape().end());
  if (shape.empty() || shape.back() * from % to != 0)
    throw_error(ErrorCode::invalid_argument,
                "dtype: the last dimension of {} cannot be cut into elements of {} bytes",
                tensor.layout().str(), to);
  shape.back() = shape.back() * from / to;
  return tensor.with_layout(Layout(dtype, shape));
}

Tensor view(const Tensor& tensor, const nb::args& arguments) {
  if (arguments.size() == 1) {
    const nb::object only = arguments[0];
    if (!PyIndex_Check(only.ptr()) && !PyTuple_Check(only.ptr()) && !PyList_Check(only.ptr()))
      return reinterpret(tensor, dtype_arg(only, "dtype"));
  }
  return reshape(tensor, arguments);
}

// ---- writing

void require_writable(const Tensor& tensor) {
  if (tensor.access() == Access::read_only)
    throw Error(ErrorCode::read_only,
                "this tensor was opened for reading only; open it with access=\"readwrite\" to write");
}

void copy_from(const Tensor& tensor, nb::handle source) {
  require_writable(tensor);
  const auto from = Source::of(source, "source");
  if (!from)
    raise_type_error(
        fmt::format("source must be an array of onecopy, torch, numpy or another library that speaks "
                    "DLPack or the buffer protocol, not {}",
                    short_repr(source)));
  const Layout given(from->dtype(), from->shape());
  if (given.dtype() != tensor.dtype() || !std::ranges::equal(given.shape(), tensor.shape()))
    throw_error(ErrorCode::invalid_argument,
                "source is {}, and the tensor is {}; both must have the same dtype and shape", given.str(),
                tensor.layout().str());
  from->copy_to(tensor);
}

bool is_number(nb::handle value) {
  return PyLong_Check(value.ptr()) || PyFloat_Check(value.ptr()) || PyComplex_Check(value.ptr());
}

/// Returns a value for numpy. torch cannot export dtypes that numpy lacks, so these tensors become float32, exactly.
nb::object for_numpy(nb::handle value, const std::optional<Source>& source) {
  const bool is_known = !source || is_native_to_numpy(source->dtype()) || !torch::is_tensor(value.ptr());
  return is_known ? nb::borrow(value) : nb::object(value.attr("detach")().attr("float")());
}

/// Assigns through numpy, which broadcasts and converts.
void assign_by_numpy(const Tensor& target, nb::handle value) {
  const Tensor host = is_on_host(target) ? target : empty(Layout(target.dtype(), target.shape()));
  to_numpy(host)[nb::ellipsis()] = value;
  if (!is_on_host(target)) copy_elements(target, host);
}

void set_item(const Tensor& tensor, nb::handle key, nb::handle value) {
  require_writable(tensor);
  const Tensor target = part(tensor, key);
  if (value.is_none()) raise_type_error("value must be a number or an array, not None");
  if (is_number(value)) return fill_elements(target, from_number(target.dtype(), value, "value"));
  if (is_numpy_scalar(value))  // numpy would wrap and truncate the number
    if (const nb::object number = value.attr("item")(); is_number(number))
      return fill_elements(target, from_number(target.dtype(), number, "value"));
  const auto from = Source::of(value, "value");
  if (from && from->dtype() == target.dtype() && std::ranges::equal(from->shape(), target.shape()))
    return from->copy_to(target);
  assign_by_numpy(target, for_numpy(value, from));
}

// ---- operators

/// Returns NotImplemented for objects that may implement the operator, such as numpy arrays. Raises TypeError for
/// others.
nb::object refuse_operator(nb::handle, nb::handle other) {
  if (!is_number(other) && !as_onecopy_tensor(other.ptr())) return nb::borrow(Py_NotImplemented);
  raise_type_error(
      "a onecopy.Tensor has no operators; .numpy() and .torch() return arrays on its memory, which have "
      "them");
}

void add_operators(nb::class_<Tensor>& c) {
  for (const char* name :
       {"add",  "sub",      "mul",       "truediv", "floordiv", "mod",     "pow", "matmul", "radd", "rsub",
        "rmul", "rtruediv", "rfloordiv", "rmod",    "rpow",     "rmatmul", "lt",  "le",     "gt",   "ge"})
    c.def(fmt::format("__{}__", name).c_str(), &refuse_operator, nb::arg("other").none());
}

// ---- the class

void add_description(nb::class_<Tensor>& c) {
  c.def_prop_ro(
       "shape", [](const Tensor& t) { return tuple_of(t.shape()); },
       nb::sig("def shape(self) -> tuple[int, ...]"), "The sizes of the dimensions.")
      .def_prop_ro(
          "strides", [](const Tensor& t) { return tuple_of(t.strides()); },
          nb::sig("def strides(self) -> tuple[int, ...]"),
          "The distances from one element of a dimension to the next, in elements (not bytes).")
      .def_prop_ro(
          "dtype", [](const Tensor& t) { return dtype_object(t.dtype()); },
          nb::sig("def dtype(self) -> onecopy.dtypes.DType"),
          "The element type, a str such as ``\"float32\"``.")
      .def_prop_ro(
          "device", [](const Tensor& t) { return t.device().str(); },
          "The device of the memory, by its number in this process: ``\"cpu\"``, ``\"cuda:0\"``, "
          "``\"npu:0\"``.")
      .def_prop_ro(
          "access", [](const Tensor& t) { return name(t.access()); },
          nb::sig("def access(self) -> typing.Literal['readwrite', 'read']"),
          "The access to the memory: ``\"readwrite\"``, or ``\"read\"`` if it cannot be written.")
      .def_prop_ro(
          "ndim", [](const Tensor& t) { return t.layout().ndim(); }, "The number of dimensions.")
      .def_prop_ro(
          "size", [](const Tensor& t) { return t.layout().numel(); }, "The number of elements.")
      .def_prop_ro(
          "nbytes", [](const Tensor& t) { return t.nbytes(); }, "The size of all elements in bytes.")
      .def_prop_ro(
          "itemsize", [](const Tensor& t) { return size_of(t.dtype()); },
          "The size of one element in bytes.")
      .def_prop_ro(
          "is_contiguous", [](const Tensor& t) { return t.layout().is_contiguous(); },
          "Whether the elements are contiguous in row-major order.")
      .def_prop_ro(
          "is_shared", [](const Tensor& t) { return is_shareable(t); },
          "Whether other processes can open the memory in place. False for memory of other libraries\n"
          "and of the store.")
      .def_prop_ro(
          "data_ptr", [](const Tensor& t) { return reinterpret_cast<std::uintptr_t>(t.data()); },
          "The address of element 0 in this process.");
}

void add_views(nb::class_<Tensor>& c) {
  c.def("__len__", &length)
      .def("__getitem__", &part, nb::arg("key").none(),
           nb::sig("def __getitem__(self, key: object) -> Tensor"),
           "Returns a part of the tensor on the same memory. ``key`` is an int, a slice with a positive\n"
           "step, ``...``, None, or a tuple of them.")
      .def("__setitem__", &set_item, nb::arg("key").none(), nb::arg("value").none(),
           nb::sig("def __setitem__(self, key: object, value: object) -> None"),
           "Writes a number or an array into a part of the tensor. numpy converts and broadcasts an array\n"
           "of another dtype or shape.\n"
           "\n"
           "Raises:\n"
           "    ReadOnly: the tensor was opened with ``access=\"read\"``.\n"
           "    OverflowError: an int does not fit into the dtype.")
      .def(
          "__iter__", [](nb::handle self) { return owned(PySeqIter_New(self.ptr())); },
          nb::sig("def __iter__(self) -> typing.Iterator[Tensor]"))
      .def("reshape", &reshape, nb::arg("shape"),
           nb::sig("def reshape(self, *shape: int | typing.Sequence[int]) -> Tensor"),
           "Returns the tensor in another shape, on the same memory. One size may be -1.\n"
           "\n"
           "Raises:\n"
           "    InvalidArgument: the number of elements differs, or the tensor is not contiguous.")
      .def("view", &view, nb::arg("shape_or_dtype"),
           nb::sig("def view(self, *shape_or_dtype: int | str | typing.Sequence[int]) -> Tensor"),
           "Returns the tensor in another shape, as ``reshape()``, or its bytes as elements of a dtype.")
      .def("copy_from", &copy_from, nb::arg("source").none(),
           nb::sig("def copy_from(self, source: object) -> None"),
           "Copies all elements of an array of the same dtype and shape into this tensor. The array may\n"
           "belong to any library with DLPack or the buffer protocol. Large copies release the GIL.\n"
           "\n"
           "Raises:\n"
           "    InvalidArgument: the dtype or the shape differs.\n"
           "    ReadOnly: the tensor was opened with ``access=\"read\"``.");
}

void add_numbers(nb::class_<Tensor>& c) {
  c.def("item", &item, nb::sig("def item(self) -> bool | int | float | complex"),
        "Returns the only element as a Python number.")
      .def("tolist", &to_list, nb::sig("def tolist(self) -> typing.Any"),
           "Returns the elements as nested lists of Python numbers, or a number for a 0-d tensor.")
      .def("__bool__", [](const Tensor& t) { return PyObject_IsTrue(item(t).ptr()) == 1; })
      .def(
          "__int__", [](const Tensor& t) { return owned(PyNumber_Long(item(t).ptr())); },
          nb::sig("def __int__(self) -> int"))
      .def(
          "__float__", [](const Tensor& t) { return owned(PyNumber_Float(item(t).ptr())); },
          nb::sig("def __float__(self) -> float"))
      .def("__index__", &index, nb::sig("def __index__(self) -> int"))
      .def("__repr__", &to_text);
}

}  // namespace

void init_tensor(nb::module_& m) {
  nb::class_<Tensor> c(
      m, "Tensor", nb::is_final(), nb::is_weak_referenceable(),
      "A strided array in memory that other processes can open without a copy.\n"
      "\n"
      "A tensor from ``from_dlpack()`` may lie in memory of another library. A tensor keeps its memory\n"
      "alive. Tensors are made by ``empty()``, ``zeros()``, ``full()``, ``from_dlpack()``, ``open()``\n"
      "and the loaders, and are compared by identity.");
  add_description(c);
  add_operators(c);
  add_views(c);
  add_numbers(c);
  c.attr("__contains__") = nb::none();  // `in` would compare identities
  init_exchange(c, m);
}

}  // namespace onecopy::python
