// SPDX-License-Identifier: Apache-2.0
#include "onecopy/memory/tensor.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include "array/buffer.h"
#include "array/dlpack.h"
#include "array/dtype.h"
#include "array/index.h"
#include "array/numbers.h"
#include "array/numpy.h"
#include "array/source.h"
#include "binding/args.h"
#include "binding/bytes.h"
#include "binding/device.h"
#include "binding/gil.h"
#include "binding/module.h"
#include "binding/open.h"
#include "binding/text.h"
#include "onecopy/core/error.h"
#include "onecopy/memory/dlpack.h"
#include "onecopy/share/share.h"
#include "torch/torch.h"
#include "value/values.h"

namespace onecopy::python {
namespace {

nb::tuple to_tuple(std::span<const std::int64_t> numbers) {
  nb::object tuple = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(numbers.size())));
  if (!tuple.is_valid()) throw nb::python_error();
  for (std::size_t i = 0; i < numbers.size(); ++i)
    NB_TUPLE_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i), nb::int_(numbers[i]).release().ptr());
  return nb::borrow<nb::tuple>(tuple);
}

Py_ssize_t length(const Tensor& tensor) {
  if (tensor.layout().ndim() == 0) raise_type_error("len() of a 0-d tensor");
  return tensor.shape()[0];
}

nb::object item(const Tensor& tensor) {
  if (tensor.layout().numel() != 1)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("only a tensor of one element is a number; {} has {}", tensor.layout().str(),
                            tensor.layout().numel()));
  return to_number(tensor.dtype(), on_host(tensor).as<std::byte>());
}

/// As numpy has it. Otherwise callers that ask whether a tensor is an index, such as bytes(), take it for an array.
nb::object index(const Tensor& tensor) {
  if (tensor.layout().ndim() == 0)
    if (nb::object number = item(tensor); PyLong_CheckExact(number.ptr())) return number;
  raise_type_error("only a 0-d tensor of ints is an index, not " + tensor.layout().str());
}

/// The result of a function of Python that makes an object.
nb::object owned(PyObject* object) {
  if (!object) throw nb::python_error();
  return nb::steal(object);
}

// ---- layouts

/// The given sizes, as numbers or in a sequence; a size of -1 is computed from the rest.
std::vector<std::int64_t> shape_from(const Tensor& tensor, const nb::args& sizes) {
  const nb::object given = sizes.size() == 1 ? nb::object(sizes[0]) : nb::object(sizes);
  const nb::object list =
      nb::steal(PyIndex_Check(given.ptr()) ? PyList_New(0) : PySequence_List(given.ptr()));
  if (!list.is_valid()) throw nb::python_error();
  if (PyIndex_Check(given.ptr())) nb::borrow<nb::list>(list).append(given);
  Py_ssize_t rest = -1;
  for (Py_ssize_t i = 0; i < NB_LIST_GET_SIZE(list.ptr()); ++i) {
    PyObject* const size = NB_LIST_GET_ITEM(list.ptr(), i);
    if (!PyLong_Check(size) || PyLong_AsLongLong(size) != -1 || PyErr_Occurred()) continue;
    if (rest >= 0)
      throw Error(ErrorCode::invalid_argument, "shape has more than one -1; only one size can be the rest");
    rest = i;
    PyList_SetItem(list.ptr(), i, PyLong_FromLong(1));
  }
  PyErr_Clear();  // a size that is too large: shape_arg() says so
  std::vector<std::int64_t> shape = shape_arg(list, "shape");
  if (rest < 0) return shape;
  const std::int64_t others = Layout(tensor.dtype(), shape).numel();
  if (others > 0) shape[static_cast<std::size_t>(rest)] = tensor.layout().numel() / others;
  return shape;
}

void require_contiguous(const Tensor& tensor, const char* method) {
  if (tensor.layout().is_contiguous()) return;
  throw Error(ErrorCode::invalid_argument, fmt::format("{} needs a contiguous tensor, and this one is {}; "
                                                       "use .copy() first",
                                                       method, tensor.layout().str()));
}

Tensor reshape(const Tensor& tensor, const nb::args& sizes) {
  require_contiguous(tensor, "reshape()");
  Layout layout(tensor.dtype(), shape_from(tensor, sizes));
  if (layout.numel() != tensor.layout().numel())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("shape: {} has {} elements, and {} has {}", layout.str(), layout.numel(),
                            tensor.layout().str(), tensor.layout().numel()));
  return tensor.with_layout(std::move(layout));
}

/// The bytes as elements of another type; the last dimension grows or shrinks with their size.
Tensor reinterpret(const Tensor& tensor, DType dtype) {
  const auto from = static_cast<std::int64_t>(size_of(tensor.dtype()));
  const auto to = static_cast<std::int64_t>(size_of(dtype));
  if (from == to) return tensor.with_layout(Layout(dtype, tensor.shape(), tensor.strides()));
  require_contiguous(tensor, "view() with elements of another size");
  std::vector<std::int64_t> shape(tensor.shape().begin(), tensor.shape().end());
  if (shape.empty() || shape.back() * from % to != 0)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("dtype: the last dimension of {} cannot be cut into elements of {} bytes",
                            tensor.layout().str(), to));
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
        fmt::format("source must be an array of onecopy, torch, numpy or another library that "
                    "speaks DLPack or the buffer protocol, not {}",
                    short_repr(source)));
  const Layout given(from->dtype(), from->shape());
  if (given.dtype() != tensor.dtype() || !std::ranges::equal(given.shape(), tensor.shape()))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("source is {}, and the tensor is {}; both must have the same dtype and shape",
                            given.str(), tensor.layout().str()));
  from->copy_to(tensor);
}

bool is_number(nb::handle value) {
  return PyLong_Check(value.ptr()) || PyFloat_Check(value.ptr()) || PyComplex_Check(value.ptr());
}

/// torch gives numpy no array of a type that numpy lacks. All such numbers are float32 as well.
nb::object for_numpy(nb::handle value, const std::optional<Source>& source) {
  const bool is_known = !source || is_native_to_numpy(source->dtype()) || !torch::is_tensor(value.ptr());
  return is_known ? nb::borrow(value) : nb::object(value.attr("detach")().attr("float")());
}

/// numpy broadcasts and converts.
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
  if (is_numpy_scalar(value))  // numpy would wrap and truncate
    if (const nb::object number = value.attr("item")(); is_number(number))
      return fill_elements(target, from_number(target.dtype(), number, "value"));
  const auto from = Source::of(value, "value");
  if (from && from->dtype() == target.dtype() && std::ranges::equal(from->shape(), target.shape()))
    return from->copy_to(target);
  assign_by_numpy(target, for_numpy(value, from));
}

// ---- operators

/// Returns NotImplemented for objects that may have the operator, such as arrays of numpy.
nb::object refuse_operator(nb::handle, nb::handle other) {
  if (!is_number(other) && !as_onecopy_tensor(other.ptr())) return nb::borrow(Py_NotImplemented);
  raise_type_error(
      "a onecopy.Tensor has no operators; .numpy() and .torch() give arrays on its memory, which do");
}

void add_operators(nb::class_<Tensor>& c) {
  for (const char* name :
       {"add",  "sub",      "mul",       "truediv", "floordiv", "mod",     "pow", "matmul", "radd", "rsub",
        "rmul", "rtruediv", "rfloordiv", "rmod",    "rpow",     "rmatmul", "lt",  "le",     "gt",   "ge"})
    c.def(fmt::format("__{}__", name).c_str(), &refuse_operator, nb::arg("other").none());
}

// ---- other libraries

Tensor own_copy(const Tensor& tensor) { return copied_to(tensor, tensor.device()); }

Tensor tensor_to_device(const Tensor& tensor, nb::handle device) {
  const Device where = device_arg(device, "device");
  return where == tensor.device() ? tensor : copied_to(tensor, where);
}

/// Does `max_version` allow the form of DLPack 1?
bool allows_versioned(nb::handle max_version) {
  if (max_version.is_none()) return false;
  if (!PyTuple_Check(max_version.ptr()) || NB_TUPLE_GET_SIZE(max_version.ptr()) != 2)
    raise_type_error(fmt::format("max_version must be None or two ints, not {}", short_repr(max_version)));
  const long major = PyLong_AsLong(NB_TUPLE_GET_ITEM(max_version.ptr(), 0));
  if (major == -1 && PyErr_Occurred()) throw nb::python_error();
  return major >= 1;
}

/// The tensor itself, or, on the cpu, a copy of one on a device: then a copy must be allowed.
Tensor on_dl_device(const Tensor& tensor, nb::handle device, nb::handle copy) {
  if (device.is_none()) return tensor;
  if (!PyTuple_Check(device.ptr()) || NB_TUPLE_GET_SIZE(device.ptr()) != 2)
    raise_type_error(fmt::format("dl_device must be None or two ints, not {}", short_repr(device)));
  const long type = PyLong_AsLong(NB_TUPLE_GET_ITEM(device.ptr(), 0));
  const long index = PyLong_AsLong(NB_TUPLE_GET_ITEM(device.ptr(), 1));
  if (PyErr_Occurred()) throw nb::python_error();
  const DLDevice here = to_dl(tensor.device());
  if (type == here.device_type && index == here.device_id) return tensor;
  if (type != kDLCpu || copy.is(nb::handle(Py_False)))
    throw nb::buffer_error(
        fmt::format("dl_device: a tensor of {} can be given out on ({}, {}), and as a copy "
                    "on the cpu, (1, 0)",
                    tensor.device().str(), here.device_type, here.device_id)
            .c_str());
  return on_host(tensor);
}

/// DLPack has numbers for streams of CUDA. Consumers on other devices do not say where they will use the tensor.
bool has_stream_numbers(Device device) { return device.type == DeviceType::cuda; }

/// The consumer's stream waits for earlier work on the tensor. -1: it takes care of that itself.
Tensor for_consumer(const Tensor& tensor, nb::handle stream) {
  if (is_on_host(tensor)) {
    if (stream.is_none()) return tensor;
    throw Error(ErrorCode::invalid_argument, "stream must be None for a tensor of the cpu");
  }
  if (stream.is_none() && !has_stream_numbers(tensor.device())) return finish_work_on(tensor), tensor;
  if (stream.is_none()) return handed_to(tensor, Stream{});
  if (PyLong_Check(stream.ptr()) && PyLong_AsLong(stream.ptr()) == -1 && !PyErr_Occurred()) return tensor;
  PyErr_Clear();
  if (PyLong_Check(stream.ptr()) && PyLong_AsLong(stream.ptr()) == 0 && !PyErr_Occurred())
    throw Error(ErrorCode::invalid_argument,
                "stream must not be 0, which could be either default stream: 1 is the legacy one, 2 the "
                "thread's own, -1 no stream at all");
  PyErr_Clear();
  return handed_to(tensor, stream_arg(stream, "stream"));
}

nb::object dlpack(const Tensor& tensor, nb::handle stream, nb::handle max_version, nb::handle dl_device,
                  nb::handle copy) {
  const bool versioned = allows_versioned(max_version);
  const Tensor there = on_dl_device(tensor, dl_device, copy);
  const bool is_copy = there.device() != tensor.device();
  const bool must_copy = !is_copy && !copy.is_none() && PyObject_IsTrue(copy.ptr()) != 0;
  if (is_copy) return to_capsule(there, versioned, true);  // done already: no stream has to wait
  return to_capsule(for_consumer(must_copy ? own_copy(there) : there, stream), versioned, must_copy);
}

Tensor from_dlpack(nb::handle x, nb::handle device, nb::handle copy) {
  if (PyType_Check(x.ptr()) || !nb::hasattr(x, "__dlpack__"))
    raise_type_error(
        fmt::format("x must have a method __dlpack__, as arrays of torch, numpy, jax and cupy "
                    "do; {} has none",
                    short_repr(x)));
  refuse_masked(x, "x");
  Tensor tensor = from_dlpack_object(x, "x");
  const Device where = device.is_none() ? tensor.device() : device_arg(device, "device");
  if (where == tensor.device())
    return !copy.is_none() && PyObject_IsTrue(copy.ptr()) == 1 ? own_copy(tensor) : tensor;
  if (copy.is(nb::handle(Py_False)))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("copy=False, but x is on {} and only a copy of it can be on {}",
                            tensor.device().str(), where.str()));
  return copied_to(tensor, where);
}

/// As numpy writes dtypes down, "<f4". REQUIRES: numpy has it.
std::string typestr(DType dtype) {
  const std::string_view kinds = "?bBuHuIuLuQubihiiiliqiefffdfZc";  // of the buffer protocol, and of numpy
  const char format = buffer_format(dtype)[0];
  std::size_t at = 0;
  while (kinds[at] != format) at += 2;
  const std::size_t bytes = size_of(dtype);
  return fmt::format("{}{}{}", bytes == 1 ? '|' : '<', kinds[at + 1], bytes);
}

/// The attribute that numba and cupy read. Only tensors on CUDA may have it.
nb::dict cuda_array_interface(const Tensor& tensor) {
  const char* const format = buffer_format(tensor.dtype());
  if (tensor.device().type != DeviceType::cuda || !format)
    throw nb::attribute_error("__cuda_array_interface__");
  const auto element = static_cast<std::int64_t>(size_of(tensor.dtype()));
  std::vector<std::int64_t> strides(tensor.strides().begin(), tensor.strides().end());
  for (std::int64_t& stride : strides) stride *= element;
  const Stream stream = current_stream(tensor.device());
  nb::dict all;
  all["shape"] = to_tuple(tensor.shape());
  all["strides"] = to_tuple(strides);
  all["typestr"] = typestr(tensor.dtype());
  all["data"] =
      nb::make_tuple(reinterpret_cast<std::uintptr_t>(tensor.data()), tensor.access() == Access::read_only);
  all["stream"] = stream.native ? reinterpret_cast<std::uintptr_t>(stream.native) : 1;
  all["version"] = 3;
  return all;
}

nb::object array(const Tensor& tensor, nb::handle dtype, nb::handle copy) {
  const nb::object same = to_numpy(tensor);
  const bool must_copy = !copy.is_none() && PyObject_IsTrue(copy.ptr()) == 1;
  if (dtype.is_none()) return must_copy ? same.attr("copy")() : same;
  nb::object converted = same.attr("astype")(dtype, nb::arg("copy") = must_copy);
  if (copy.is(nb::handle(Py_False)) && !converted.is(same))
    throw Error(ErrorCode::invalid_argument, "copy=False, but elements of another dtype need a copy");
  return converted;
}

/// jax takes neither our dtypes nor, from asarray(), DLPack.
nb::object jax_array(nb::handle self) {
  const nb::object from_dlpack = nb::module_::import_("jax.numpy").attr("from_dlpack");
  return call_python([&] { return from_dlpack(self); });
}

/// The elements, row-major.
nb::object tensor_to_bytes(const Tensor& tensor) {
  const Tensor host = on_host(tensor);
  const Tensor packed = host.layout().is_contiguous() ? host : own_copy(host);
  return to_python({packed.as<const std::byte>(), packed.nbytes()});
}

nb::object reduce(nb::handle self, int protocol) {
  const nb::object reduce_outside = nb::module_::import_("onecopy._pickled").attr("reduce");
  return call_python([&] { return reduce_outside(self, protocol); });
}

nb::object reduce_handle(const Tensor& tensor) {
  const Tensor shared = is_shareable(tensor) ? tensor : own_copy(tensor);
  const nb::bytes handle = to_python(hold(share_in_order(shared)).to_bytes());
  return nb::make_tuple(nb::module_::import_("onecopy._reopen").attr("tensor"),
                        nb::make_tuple(handle, name(tensor.access())));
}

// ---- the class

void add_description(nb::class_<Tensor>& c) {
  c.def_prop_ro(
       "shape", [](const Tensor& t) { return to_tuple(t.shape()); },
       nb::sig("def shape(self) -> tuple[int, ...]"), "Sizes of the dimensions.")
      .def_prop_ro(
          "strides", [](const Tensor& t) { return to_tuple(t.strides()); },
          nb::sig("def strides(self) -> tuple[int, ...]"),
          "Elements (not bytes) from one element of a dimension to the next.")
      .def_prop_ro(
          "dtype", [](const Tensor& t) { return dtype_object(t.dtype()); },
          nb::sig("def dtype(self) -> onecopy.dtypes.DType"),
          "The element type: a str such as ``\"float32\"``.")
      .def_prop_ro(
          "device", [](const Tensor& t) { return t.device().str(); },
          "Where the memory is, as this process numbers devices: ``\"cpu\"``, ``\"cuda:0\"``, "
          "``\"npu:0\"``.")
      .def_prop_ro(
          "access", [](const Tensor& t) { return name(t.access()); },
          nb::sig("def access(self) -> typing.Literal['readwrite', 'read']"),
          "``\"readwrite\"``, or ``\"read\"`` when the memory must not be written.")
      .def_prop_ro(
          "ndim", [](const Tensor& t) { return t.layout().ndim(); }, "Number of dimensions.")
      .def_prop_ro(
          "size", [](const Tensor& t) { return t.layout().numel(); }, "Number of elements.")
      .def_prop_ro(
          "nbytes", [](const Tensor& t) { return t.nbytes(); }, "Bytes of all elements together.")
      .def_prop_ro(
          "itemsize", [](const Tensor& t) { return size_of(t.dtype()); }, "Bytes of one element.")
      .def_prop_ro(
          "is_contiguous", [](const Tensor& t) { return t.layout().is_contiguous(); },
          "Do the elements follow each other in row-major order?")
      .def_prop_ro(
          "is_shared", [](const Tensor& t) { return is_shareable(t); },
          "Can other processes open it as it is? False for memory of other libraries.")
      .def_prop_ro(
          "data_ptr", [](const Tensor& t) { return reinterpret_cast<std::uintptr_t>(t.data()); },
          "Address of element 0 in this process.");
}

void add_views(nb::class_<Tensor>& c) {
  c.def("__len__", &length)
      .def("__getitem__", &part, nb::arg("key").none(),
           nb::sig("def __getitem__(self, key: object) -> Tensor"),
           "A part of the tensor on the same memory. ``key``: ints, slices with positive steps,\n"
           "``...``, None, or a tuple of those.")
      .def("__setitem__", &set_item, nb::arg("key").none(), nb::arg("value").none(),
           nb::sig("def __setitem__(self, key: object, value: object) -> None"),
           "Writes a number or an array into a part of the tensor. Arrays of another dtype or shape\n"
           "are converted and broadcast by numpy.\n"
           "\n"
           "Raises:\n"
           "    ReadOnly: the tensor was opened with ``access=\"read\"``.\n"
           "    OverflowError: an int does not fit into the dtype.")
      .def(
          "__iter__", [](nb::handle self) { return owned(PySeqIter_New(self.ptr())); },
          nb::sig("def __iter__(self) -> typing.Iterator[Tensor]"))
      .def("reshape", &reshape, nb::arg("shape"),
           nb::sig("def reshape(self, *shape: int | typing.Sequence[int]) -> Tensor"),
           "The elements in another shape, on this memory; -1 stands for the rest.\n"
           "\n"
           "Raises:\n"
           "    InvalidArgument: another number of elements, or the tensor is not contiguous.")
      .def("view", &view, nb::arg("shape_or_dtype"),
           nb::sig("def view(self, *shape_or_dtype: int | str | typing.Sequence[int]) -> Tensor"),
           "``reshape()``, or, given a dtype, the same bytes as elements of that type.")
      .def("copy", &own_copy, "The elements in new shared memory on the tensor's device, row-major.")
      .def("to", &tensor_to_device, nb::arg("device").none(),
           nb::sig("def to(self, device: typing.Any) -> Tensor"),
           "The tensor itself if it is on that device, or else a copy there, row-major. Waits for work\n"
           "of the program's current streams on it, and until the copy is made.")
      .def("cpu", &on_host, "``to(\"cpu\")``.")
      .def("copy_from", &copy_from, nb::arg("source").none(),
           nb::sig("def copy_from(self, source: object) -> None"),
           "Copies all elements of an array of the same dtype and shape: of onecopy, torch, numpy,\n"
           "or anything else with DLPack or the buffer protocol. Large ones without the GIL.\n"
           "\n"
           "Raises:\n"
           "    InvalidArgument: another dtype or shape.\n"
           "    ReadOnly: the tensor was opened with ``access=\"read\"``.");
}

void add_numbers(nb::class_<Tensor>& c) {
  c.def("item", &item, nb::sig("def item(self) -> bool | int | float | complex"),
        "The one element as a Python number.")
      .def("tolist", &to_list, nb::sig("def tolist(self) -> typing.Any"),
           "The elements as nested lists of Python numbers; one number for a 0-d tensor.")
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

void add_exchange(nb::class_<Tensor>& c) {
  c.def(
       "__dlpack__", &dlpack, nb::kw_only(), nb::arg("stream") = nb::none(),
       nb::arg("max_version") = nb::none(), nb::arg("dl_device") = nb::none(), nb::arg("copy") = nb::none(),
       nb::sig(
           "def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None, "
           "dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> object"),
       "The tensor as a DLPack capsule, as the array API standard says. No copy unless\n"
       "``copy=True``. A read-only tensor needs ``max_version=(1, 0)`` or more.\n"
       "\n"
       "Work of the program's current stream (torch's, or else the default one) on a CUDA tensor\n"
       "comes before the consumer's later work in ``stream``. None and 1 are the legacy default\n"
       "stream, 2 the thread's default stream, -1 is for consumers that keep the order themselves.\n"
       "Consumers on Ascend devices name no stream: the call waits until that work is done.")
      .def(
          "__dlpack_device__",
          [](const Tensor& t) {
            const DLDevice device = to_dl(t.device());
            return nb::make_tuple(device.device_type, device.device_id);
          },
          nb::sig("def __dlpack_device__(self) -> tuple[int, int]"))
      .def_prop_ro("__cuda_array_interface__", &cuda_array_interface,
                   nb::sig("def __cuda_array_interface__(self) -> dict[str, typing.Any]"),
                   "Version 3 of the interface; only tensors of CUDA devices have it.")
      .def("__array__", &array, nb::arg("dtype") = nb::none(), nb::arg("copy") = nb::none(),
           nb::sig("def __array__(self, dtype: typing.Any = None, copy: bool | None = None) -> typing.Any"))
      .def("numpy", &to_numpy, nb::sig("def numpy(self) -> typing.Any"),
           "A ``numpy.ndarray`` on the same memory, not writeable when the tensor is read-only.\n"
           "bfloat16 and the 8-bit floats need the package ml_dtypes.\n"
           "\n"
           "Raises:\n"
           "    Unsupported: numpy has no such dtype, and ml_dtypes is not installed; or the tensor is\n"
           "        on a device: use ``.cpu()`` first.")
      .def("torch", &to_torch, nb::sig("def torch(self) -> typing.Any"),
           "A ``torch.Tensor`` on the same memory. torch has no read-only tensors: writing to one\n"
           "that was opened with ``access=\"read\"`` is a segmentation fault.")
      .def("__copy__", [](const Tensor& t) { return t; })
      .def(
          "__deepcopy__", [](const Tensor& t, nb::handle) { return own_copy(t); }, nb::arg("memo").none(),
          nb::sig("def __deepcopy__(self, memo: object) -> Tensor"))
      .def("__jax_array__", &jax_array, nb::sig("def __jax_array__(self) -> typing.Any"),
           "A ``jax.Array`` on the same memory: ``jax.numpy.asarray()`` asks for it. The tensor must\n"
           "not be written from then on, because jax takes its arrays for constant.")
      .def("memoryview", &to_memoryview, nb::sig("def memoryview(self) -> builtins.memoryview"),
           "A ``memoryview`` on the same memory, for files, sockets and ``struct``. The tensor itself\n"
           "is no buffer: ``torch.asarray()`` would take its bytes for float32.\n"
           "\n"
           "Raises:\n"
           "    BufferError: the tensor is on a device, or its dtype has no format: see ``view()``.")
      .def("__bytes__", &tensor_to_bytes, nb::sig("def __bytes__(self) -> bytes"))
      .def("__reduce_ex__", &reduce, nb::arg("protocol"),
           nb::sig("def __reduce_ex__(self, protocol: typing.SupportsIndex) -> tuple[typing.Any, ...]"),
           "``pickle`` and ``torch.save()`` write the elements: unpickling makes a new tensor.\n"
           "Picklers for another process write a handle instead: queues, pipes, pools and arguments of\n"
           "multiprocessing, joblib and Ray. Then the memory is kept until the first unpickling, ten\n"
           "minutes at most; memory of other libraries is copied into shared memory first.")
      .def("_reduce_handle", &reduce_handle, "How a channel pickles the tensor.");
}

}  // namespace

void init_tensor(nb::module_& m) {
  nb::class_<Tensor> c(
      m, "Tensor", nb::is_final(), nb::is_weak_referenceable(),
      "A strided array in memory that other processes can open without a copy, or, made by\n"
      "``from_dlpack()``, on memory of another library. It keeps its memory alive. Made by\n"
      "``empty()``, ``zeros()``, ``full()``, ``from_dlpack()``, ``open()`` and the loaders.\n"
      "Compared by identity.");
  add_description(c);
  add_operators(c);
  add_views(c);
  add_numbers(c);
  add_exchange(c);
  c.attr("__contains__") = nb::none();  // `in` would compare identities
  m.def("from_dlpack", &from_dlpack, nb::arg("x").none(), nb::kw_only(), nb::arg("device") = nb::none(),
        nb::arg("copy") = nb::none(),
        nb::sig("def from_dlpack(x: typing.Any, *, device: typing.Any = None, copy: bool | None = None) -> "
                "Tensor"),
        "An array of another library as a tensor on the same memory, which ``share()`` copies\n"
        "once into shared memory. An array on memory of onecopy is that memory again.\n"
        "``copy=True`` copies at once, and so does a ``device`` that the array is not on. Memory of a\n"
        "CUDA device is shared where it is; that of an Ascend device has to be copied. Arrays of jax must\n"
        "not change, which DLPack does not say: do not write to them here.\n"
        "\n"
        "Raises:\n"
        "    TypeError: x has no ``__dlpack__``.\n"
        "    Unsupported: a device that is neither the cpu nor of CUDA or Ascend, an unknown dtype,\n"
        "        negative strides.");
}

}  // namespace onecopy::python
