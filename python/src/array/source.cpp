// SPDX-License-Identifier: Apache-2.0
#include "array/source.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <algorithm>

#include "array/dlpack.h"
#include "array/dtype.h"
#include "array/exports.h"
#include "array/numpy.h"
#include "binding/args.h"
#include "binding/device.h"
#include "binding/gil.h"
#include "binding/kept.h"
#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "share/session.h"

namespace onecopy::python {
namespace {

[[noreturn]] void refuse_array(const std::string& message) { throw Error(ErrorCode::unsupported, message); }

/// Returns the dtype of a numpy array whose elements ml_dtypes defines and the buffer protocol lacks.
std::optional<DType> extended_dtype(nb::handle object) {
  if (!is_ndarray(object.ptr())) return std::nullopt;
  const auto dtype = parse_dtype(nb::cast<std::string>(object.attr("dtype").attr("name")));
  if (!dtype || is_native_to_numpy(*dtype)) return std::nullopt;
  return dtype;
}

/// Returns the name of the elements in numpy, or else their format of the buffer protocol.
std::string name_of_elements(nb::handle memoryview) {
  const nb::object dtype = nb::getattr(memoryview.attr("obj"), "dtype", nb::none());
  if (dtype.is_none()) return fmt::format("format '{}'", nb::str(memoryview.attr("format")).c_str());
  return fmt::format("dtype {}", nb::str(dtype).c_str());
}

/// Returns what to do about elements of an unsupported format, for the error.
const char* advice(std::string_view format) {
  if (format == "O")
    return "they are references to objects of this process: make them numbers with .astype(), or put the "
           "array into a queue, which pickles it";
  if (format.starts_with('T'))
    return "share its fields one by one: {name: x[name].copy() for name in x.dtype.names}";
  if (format.ends_with('w') || format.ends_with('s'))
    return "put the array into a queue, which pickles it, or share its bytes: x.view(\"uint8\")";
  if (format.ends_with('g'))  // of the processor's own long double
    return "convert them first, to x.astype(\"float64\") or \"complex128\", or share their bytes: "
           "x.view(\"uint8\")";
  return "convert them to little-endian numbers first, with .astype()";
}

/// Returns what to do about arrays of numpy's dates and times, which are 64-bit numbers.
std::string advice_for_times(nb::handle object) {
  const nb::object dtype = nb::getattr(object, "dtype", nb::none());
  const nb::object kind = nb::getattr(dtype, "kind", nb::none());
  if (!kind.equal(nb::str("M")) && !kind.equal(nb::str("m"))) return {};
  return fmt::format("; share them as x.view(\"int64\"), and view them as \"{}\" again after open()",
                     nb::str(dtype).c_str());
}

/// A buffer of the array's memory, which the destructor releases.
class Buffer {
 public:
  explicit Buffer(nb::handle memoryview) : memoryview_(memoryview) {
    if (PyObject_GetBuffer(memoryview.ptr(), &view_, PyBUF_FULL_RO) != 0) throw nb::python_error();
  }
  Buffer& operator=(Buffer&&) = delete;
  ~Buffer() { PyBuffer_Release(&view_); }

  DType dtype(const char* argument) const {
    const auto dtype = parse_buffer_format(view_.format, static_cast<std::size_t>(view_.itemsize));
    if (dtype) return *dtype;
    refuse_array(fmt::format("{} has elements of the {}, {} bytes each, which cannot be shared; {}",
                             argument, name_of_elements(memoryview_), view_.itemsize,
                             advice(view_.format)));
  }

  StridedView elements(const char* argument) const {
    if (view_.suboffsets && std::any_of(view_.suboffsets, view_.suboffsets + view_.ndim,
                                        [](Py_ssize_t offset) { return offset >= 0; }))
      refuse_array(
          fmt::format("{} is made of pointers to rows, which cannot be shared; copy it first", argument));
    return {static_cast<std::byte*>(view_.buf),
            {view_.shape, view_.shape + view_.ndim},
            {view_.strides, view_.strides + view_.ndim},
            static_cast<std::size_t>(view_.itemsize)};
  }

  Access access() const { return view_.readonly ? Access::read_only : Access::read_write; }

 private:
  nb::handle memoryview_;
  Py_buffer view_{};
};

/// Returns whether the array is on a device. cupy's arrays have the buffer protocol, but raise when it is used.
bool is_on_a_device(nb::handle object) {
  if (!nb::hasattr(object, "__dlpack_device__")) return false;
  const nb::object device = object.attr("__dlpack_device__")();
  return nb::cast<int>(device[0]) != 1;  // kDLCPU
}

/// Returns the elements as a tensor of onecopy if they lie in its memory.
std::optional<Tensor> find_ours(DType dtype, const StridedView& elements, Access access) {
  const auto size = static_cast<std::int64_t>(elements.element_size);
  std::vector<std::int64_t> strides;
  for (const std::int64_t stride : elements.strides) {
    if (stride < 0 || stride % size != 0) return std::nullopt;
    strides.push_back(stride / size);
  }
  return find_exported({elements.data, Layout(dtype, elements.shape, strides), kCpu, access});
}

}  // namespace

const Tensor* as_onecopy_tensor(PyObject* object) {
  static PyTypeObject* const type = reinterpret_cast<PyTypeObject*>(nb::type<Tensor>().ptr());
  return Py_TYPE(object) == type ? nb::inst_ptr<Tensor>(object) : nullptr;
}

void refuse_masked(nb::handle object, const char* argument) {
  const nb::object masked = nb::steal(PyImport_GetModule(nb::str("numpy.ma").ptr()));
  if (!masked.is_valid() && PyErr_Occurred()) throw nb::python_error();
  if (masked.is_valid() && nb::isinstance(object, masked.attr("MaskedArray")))
    refuse_array(fmt::format(
        "{} is a masked array, whose mask would be lost; share x.data and x.mask, or x.filled()",
        argument));
}

void copy_with_gil(const StridedView& to, const StridedView& from) {
  if (static_cast<std::size_t>(to.count()) * to.element_size < kLargeCopy) return copy_elements(to, from);
  without_gil([&] { copy_elements(to, from); });
}

std::optional<Source> Source::of(nb::handle object, const char* argument) {
  if (const Tensor* tensor = as_onecopy_tensor(object.ptr())) {
    Source source(*tensor);
    if (source.ours_) source.itself_ = nb::borrow(object);
    return source;
  }
  refuse_masked(object, argument);
  const std::optional<DType> dtype = extended_dtype(object);
  const nb::object bits =
      dtype ? object.attr("view")(size_of(*dtype) == 1 ? "uint8" : "uint16") : nb::borrow(object);
  std::optional<nb::python_error> why;  // for which an object that has a buffer does not export it
  if (PyObject_CheckBuffer(bits.ptr()) && !is_on_a_device(bits)) {
    const nb::object memoryview = nb::steal(PyMemoryView_FromObject(bits.ptr()));
    if (memoryview.is_valid()) return of_buffer(memoryview, argument, dtype);
    if (!PyErr_ExceptionMatches(PyExc_ValueError) && !PyErr_ExceptionMatches(PyExc_BufferError))
      throw nb::python_error();
    why.emplace();
  } else if (PyType_Check(object.ptr()) || !nb::hasattr(object, "__dlpack__")) {
    return std::nullopt;
  }
  return of_dlpack(object, argument, why);
}

Source::Source(const Tensor& tensor) : dtype_(tensor.dtype()), tensor_(tensor), elements_(strided(tensor)) {
  if (is_shareable(tensor) && is_sendable(tensor)) ours_ = tensor;
}

Source Source::of_buffer(const nb::object& memoryview, const char* argument, std::optional<DType> dtype) {
  const Buffer buffer(memoryview);
  Source source(dtype ? *dtype : buffer.dtype(argument), memoryview, buffer.elements(argument));
  source.ours_ = find_ours(source.dtype_, source.elements_, buffer.access());
  if (source.ours_ && !is_sendable(*source.ours_)) source.ours_.reset();
  return source;
}

/// Reads an array by DLPack. If it has a buffer and does not export it, `why` is the reason: numpy does not export some
/// types, such as datetime64, and jax has types that only DLPack supports, such as bfloat16.
Source Source::of_dlpack(nb::handle object, const char* argument,
                         const std::optional<nb::python_error>& why) {
  constexpr const char* kMessage = "the elements of {} cannot be shared: {}";
  if (why && !nb::hasattr(object, "__dlpack__"))
    refuse_array(fmt::format(kMessage, argument, nb::str(why->value()).c_str()));
  try {
    return Source(from_dlpack_object(object, argument));
  } catch (nb::python_error& error) {
    if (!why || !error.matches(PyExc_Exception)) throw;
    refuse_array(fmt::format(kMessage, argument, nb::str(error.value()).c_str()) +
                 advice_for_times(object));
  }
}

Tensor Source::shared() const {
  if (ours_) return *ours_;
  if (tensor_ && !is_shareable(*tensor_))
    if (Tensor lent = without_gil([&] { return sendable(*tensor_); }); is_shareable(lent)) return lent;
  if (device() == kCpu || tensor_->nbytes() == 0) return copied();
  return adopt(tensor_->view(), keep_object(nb::cast(*tensor_)));
}

nb::object Source::as_tensor() const { return itself_.is_valid() ? itself_ : nb::cast(shared()); }

Tensor Source::copied() const {
  const Layout layout(dtype_, elements_.shape);
  Tensor copy = device() == kCpu ? empty(layout) : empty_in_order(layout, device());
  copy_to(copy);
  return copy;
}

void Source::copy_to(const Tensor& target) const {
  if (device() != kCpu) return copy_elements(target, *tensor_);
  if (is_on_host(target)) return copy_with_gil(strided(target), elements_);
  copy_elements(target, copied());
}

}  // namespace onecopy::python
