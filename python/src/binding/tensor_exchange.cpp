// SPDX-License-Identifier: Apache-2.0
// Exchanges tensors with other libraries, and pickles them.
#include "binding/tensor_exchange.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include "array/buffer.h"
#include "array/dlpack.h"
#include "array/dtype.h"
#include "array/numpy.h"
#include "array/source.h"
#include "binding/args.h"
#include "binding/bytes.h"
#include "binding/gil.h"
#include "binding/open.h"
#include "core/throw_error.h"
#include "onecopy/memory/dlpack.h"
#include "onecopy/share/share.h"
#include "share/session.h"
#include "torch/torch.h"

namespace onecopy::python {
namespace {

Tensor tensor_to_device(const Tensor& tensor, nb::handle device) {
  const Device where = device_arg(device, "device");
  return where == tensor.device() ? tensor : copied_to(tensor, where);
}

/// Returns whether `max_version` allows a capsule of DLPack 1.
bool allows_versioned(nb::handle max_version) {
  if (max_version.is_none()) return false;
  if (!PyTuple_Check(max_version.ptr()) || NB_TUPLE_GET_SIZE(max_version.ptr()) != 2)
    raise_type_error(fmt::format("max_version must be None or two ints, not {}", short_repr(max_version)));
  const long major = PyLong_AsLong(NB_TUPLE_GET_ITEM(max_version.ptr(), 0));
  if (major == -1 && PyErr_Occurred()) throw nb::python_error();
  return major >= 1;
}

/// Returns the tensor itself, or a copy on the cpu of a tensor on a device if `copy` allows it.
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
        fmt::format(
            "dl_device: a tensor of {} can be exported on ({}, {}), and as a copy on the cpu, (1, 0)",
            tensor.device().str(), here.device_type, here.device_id)
            .c_str());
  return on_host(tensor);
}

/// Returns whether DLPack defines stream numbers for the device, as for CUDA. Consumers on other devices name no
/// stream.
bool has_stream_numbers(Device device) { return device.type == DeviceType::cuda; }

/// Makes the consumer's stream wait for earlier work on the tensor. -1 means that the consumer orders the work itself.
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
  if (is_copy) return to_capsule(there, versioned, true);  // the copy is complete, so no stream has to wait
  return to_capsule(for_consumer(must_copy ? own_copy(there) : there, stream), versioned, must_copy);
}

Tensor from_dlpack(nb::handle x, nb::handle device, nb::handle copy) {
  if (PyType_Check(x.ptr()) || !nb::hasattr(x, "__dlpack__"))
    raise_type_error(fmt::format(
        "x must have a method __dlpack__, as arrays of torch, numpy, jax and cupy do; {} has none",
        short_repr(x)));
  refuse_masked(x, "x");
  Tensor tensor = from_dlpack_object(x, "x");
  const Device where = device.is_none() ? tensor.device() : device_arg(device, "device");
  if (where == tensor.device())
    return !copy.is_none() && PyObject_IsTrue(copy.ptr()) == 1 ? own_copy(tensor) : tensor;
  if (copy.is(nb::handle(Py_False)))
    throw_error(ErrorCode::invalid_argument,
                "copy=False, but x is on {} and only a copy of it can be on {}", tensor.device().str(),
                where.str());
  return copied_to(tensor, where);
}

/// Returns the name of the dtype in numpy's array interface, e.g. "<f4". REQUIRES: numpy has the dtype.
std::string typestr(DType dtype) {
  const std::string_view kinds = "?bBuHuIuLuQubihiiiliqiefffdfZc";  // of the buffer protocol, and of numpy
  const char format = buffer_format(dtype)[0];
  std::size_t at = 0;
  while (kinds[at] != format) at += 2;
  const std::size_t bytes = size_of(dtype);
  return fmt::format("{}{}{}", bytes == 1 ? '|' : '<', kinds[at + 1], bytes);
}

/// Returns the attribute that numba and cupy read. Raises AttributeError for a tensor that is not on CUDA.
nb::dict cuda_array_interface(const Tensor& tensor) {
  const char* const format = buffer_format(tensor.dtype());
  if (tensor.device().type != DeviceType::cuda || !format)
    throw nb::attribute_error("__cuda_array_interface__");
  const auto element = static_cast<std::int64_t>(size_of(tensor.dtype()));
  std::vector<std::int64_t> strides(tensor.strides().begin(), tensor.strides().end());
  for (std::int64_t& stride : strides) stride *= element;
  const Stream stream = current_stream(tensor.device());
  nb::dict all;
  all["shape"] = tuple_of(tensor.shape());
  all["strides"] = tuple_of(strides);
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

/// Returns a jax.Array by DLPack, which jax.numpy.asarray() does not use itself.
nb::object jax_array(nb::handle self) {
  const nb::object from_dlpack = nb::module_::import_("jax.numpy").attr("from_dlpack");
  return call_python([&] { return from_dlpack(self); });
}

/// Returns the bytes of the elements, row-major.
nb::object tensor_to_bytes(const Tensor& tensor) {
  const Tensor host = on_host(tensor);
  const Tensor packed = host.layout().is_contiguous() ? host : own_copy(host);
  return to_python({packed.as<const std::byte>(), packed.nbytes()});
}

nb::object reduce(nb::handle self, int protocol) {
  const nb::object reduce_outside = nb::module_::import_("onecopy.pickling.tensors").attr("reduce");
  return call_python([&] { return reduce_outside(self, protocol); });
}

nb::object reduce_handle(const Tensor& tensor) {
  const Tensor sent = is_sendable(tensor) ? tensor : without_gil([&] { return sendable(tensor); });
  const Tensor shared = is_shareable(sent) ? sent : own_copy(tensor);
  const nb::bytes handle = to_python(hold(share_in_order(shared)).to_bytes());
  return nb::make_tuple(nb::module_::import_("onecopy.pickling.tensors").attr("tensor"),
                        nb::make_tuple(handle, name(tensor.access())));
}

// NOLINTNEXTLINE(readability-function-size): a list of definitions with their docstrings
void add_exchange(nb::class_<Tensor>& c) {
  c.def("copy", &own_copy, "Returns a row-major copy in new shared memory on the tensor's device.")
      .def("to", &tensor_to_device, nb::arg("device").none(),
           nb::sig("def to(self, device: typing.Any) -> Tensor"),
           "Returns the tensor itself if it is on the device, or else a row-major copy there. Waits for "
           "work\n"
           "of the program's current streams, and for the copy.")
      .def("cpu", &on_host, "Returns ``to(\"cpu\")``.")
      .def(
          "__dlpack__", &dlpack, nb::kw_only(), nb::arg("stream") = nb::none(),
          nb::arg("max_version") = nb::none(), nb::arg("dl_device") = nb::none(),
          nb::arg("copy") = nb::none(),
          nb::sig("def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None "
                  "= None, dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> object"),
          "Returns the tensor as a DLPack capsule, as the array API standard specifies. Copies only with\n"
          "``copy=True``. A read-only tensor needs ``max_version=(1, 0)`` or more.\n"
          "\n"
          "Work on a CUDA tensor in the program's current stream (torch's, or else the default stream) "
          "runs\n"
          "before the consumer's later work in ``stream``. None and 1 are the legacy default stream, 2 is\n"
          "the thread's default stream, and -1 is for consumers that order the work themselves. Consumers\n"
          "on Ascend devices name no stream: the call waits until the work is done.")
      .def(
          "__dlpack_device__",
          [](const Tensor& t) {
            const DLDevice device = to_dl(t.device());
            return nb::make_tuple(device.device_type, device.device_id);
          },
          nb::sig("def __dlpack_device__(self) -> tuple[int, int]"))
      .def_prop_ro("__cuda_array_interface__", &cuda_array_interface,
                   nb::sig("def __cuda_array_interface__(self) -> dict[str, typing.Any]"),
                   "The CUDA array interface, version 3. Only tensors on CUDA devices have it.")
      .def("__array__", &array, nb::arg("dtype") = nb::none(), nb::arg("copy") = nb::none(),
           nb::sig("def __array__(self, dtype: typing.Any = None, copy: bool | None = None) -> typing.Any"))
      .def("numpy", &to_numpy, nb::sig("def numpy(self) -> typing.Any"),
           "Returns a ``numpy.ndarray`` on the same memory, which is read-only if the tensor is.\n"
           "bfloat16 and the 8-bit floats need the package ml_dtypes.\n"
           "\n"
           "Raises:\n"
           "    Unsupported: numpy lacks the dtype and ml_dtypes is not installed; or the tensor is on a\n"
           "        device: use ``.cpu()`` first.")
      .def("torch", &to_torch, nb::sig("def torch(self) -> typing.Any"),
           "Returns a ``torch.Tensor`` on the same memory. torch has no read-only tensors: writing to\n"
           "memory that was opened with ``access=\"read\"`` is a segmentation fault.")
      .def("__copy__", [](const Tensor& t) { return t; })
      .def(
          "__deepcopy__", [](const Tensor& t, nb::handle) { return own_copy(t); }, nb::arg("memo").none(),
          nb::sig("def __deepcopy__(self, memo: object) -> Tensor"))
      .def("__jax_array__", &jax_array, nb::sig("def __jax_array__(self) -> typing.Any"),
           "Returns a ``jax.Array`` on the same memory, for ``jax.numpy.asarray()``. Do not write to the\n"
           "tensor afterwards, since jax assumes that its arrays never change.")
      .def("memoryview", &to_memoryview, nb::sig("def memoryview(self) -> builtins.memoryview"),
           "Returns a ``memoryview`` on the same memory, for files, sockets and ``struct``. The tensor\n"
           "itself does not export a buffer, since ``torch.asarray()`` would read it as float32.\n"
           "\n"
           "Raises:\n"
           "    BufferError: the tensor is on a device, or its dtype has no buffer format; see ``view()``.")
      .def("__bytes__", &tensor_to_bytes, nb::sig("def __bytes__(self) -> bytes"))
      .def(
          "__reduce_ex__", &reduce, nb::arg("protocol"),
          nb::sig("def __reduce_ex__(self, protocol: typing.SupportsIndex) -> tuple[typing.Any, ...]"),
          "Pickles the tensor. ``pickle`` and ``torch.save()`` write the elements, and unpickling makes a\n"
          "new tensor. Picklers for another process (queues, pipes, pools and arguments of\n"
          "multiprocessing, joblib and Ray) write a handle: the memory is kept until the first\n"
          "unpickling, for ten minutes at most. Memory of other libraries is first copied into shared\n"
          "memory.")
      .def("_reduce_handle", &reduce_handle, "Pickles the tensor as a handle.");
}

}  // namespace

void init_exchange(nb::class_<Tensor>& c, nb::module_& m) {
  add_exchange(c);
  m.def("from_dlpack", &from_dlpack, nb::arg("x").none(), nb::kw_only(), nb::arg("device") = nb::none(),
        nb::arg("copy") = nb::none(),
        nb::sig("def from_dlpack(x: typing.Any, *, device: typing.Any = None, copy: bool | None = None) -> "
                "Tensor"),
        "Returns an array of another library as a tensor on the same memory.\n"
        "\n"
        "``share()`` copies memory of another library once into shared memory. An array on memory of\n"
        "onecopy yields a tensor on that memory. ``copy=True`` copies at once, and so does a ``device``\n"
        "that differs from the array's. Memory of a CUDA device is shared in place; memory of an Ascend\n"
        "device is copied. Do not write to arrays of jax: they must not change.\n"
        "\n"
        "Raises:\n"
        "    TypeError: x has no method ``__dlpack__``.\n"
        "    Unsupported: x is neither on the cpu nor on a CUDA or Ascend device, has an unknown dtype,\n"
        "        or has negative strides.");
}

}  // namespace onecopy::python
