// SPDX-License-Identifier: Apache-2.0
#include "array/buffer.h"

#include <fmt/format.h>

#include <memory>
#include <utility>
#include <vector>

#include "array/dtype.h"
#include "array/exports.h"
#include "onecopy/core/error.h"

namespace onecopy::python {
namespace {

/// The arrays that a Py_buffer points into. The Py_buffer owns it.
struct View {
  explicit View(Tensor t) : tensor(std::move(t)) {}

  Tensor tensor;
  std::vector<Py_ssize_t> shape;
  std::vector<Py_ssize_t> strides;  ///< bytes
  Py_ssize_t nothing = 0;           ///< the address of empty tensors without memory
};

bool asks(int flags, int wanted) { return (flags & wanted) == wanted; }

/// Returns whether the layout is column-major.
bool is_fortran(const Layout& layout) {
  std::int64_t expected = 1;
  for (std::size_t i = 0; i < layout.ndim(); ++i) {
    if (layout.shape()[i] == 0) return true;
    if (layout.shape()[i] == 1) continue;
    if (layout.strides()[i] != expected) return false;
    expected *= layout.shape()[i];
  }
  return true;
}

/// Returns why the tensor cannot export the view that the flags request, or an empty text.
std::string objection(const Tensor& tensor, int flags) {
  const Layout& layout = tensor.layout();
  if (!buffer_format(tensor.dtype()))
    return fmt::format(
        "the buffer protocol has no format for {}; use .torch(), .numpy() with the package "
        "ml_dtypes, or DLPack",
        onecopy::name(tensor.dtype()));
  if (tensor.device().type != DeviceType::cpu)
    return fmt::format("the tensor is on {}, which is not memory of the cpu", tensor.device().str());
  if (asks(flags, PyBUF_WRITABLE) && tensor.access() == Access::read_only)
    return "the tensor was opened for reading only";
  const bool row_major = layout.is_contiguous();
  const bool must_be_row_major = asks(flags, PyBUF_C_CONTIGUOUS) || !asks(flags, PyBUF_STRIDES);
  if (must_be_row_major && !row_major) return "the tensor is not contiguous: " + layout.str();
  if (asks(flags, PyBUF_F_CONTIGUOUS) && !is_fortran(layout))
    return "the tensor is not column-major: " + layout.str();
  if (asks(flags, PyBUF_ANY_CONTIGUOUS) && !row_major && !is_fortran(layout))
    return "the tensor is not contiguous: " + layout.str();
  return {};
}

void fill_in(Py_buffer& out, std::unique_ptr<View> view, int flags) {
  const Tensor& tensor = view->tensor;
  const auto element = static_cast<Py_ssize_t>(size_of(tensor.dtype()));
  view->shape.assign(tensor.shape().begin(), tensor.shape().end());
  for (const std::int64_t stride : tensor.strides()) view->strides.push_back(stride * element);
  out.buf = tensor.data() ? tensor.data() : &view->nothing;
  out.len = static_cast<Py_ssize_t>(tensor.nbytes());
  out.itemsize = element;
  out.readonly = tensor.access() == Access::read_only ? 1 : 0;
  out.ndim = static_cast<int>(tensor.layout().ndim());
  out.format = asks(flags, PyBUF_FORMAT) ? const_cast<char*>(buffer_format(tensor.dtype())) : nullptr;
  out.shape = asks(flags, PyBUF_ND) ? view->shape.data() : nullptr;
  out.strides = asks(flags, PyBUF_STRIDES) ? view->strides.data() : nullptr;
  out.suboffsets = nullptr;
  out.internal = view.release();
}

/// An object that exports a tensor by the buffer protocol. The class Tensor does not, since torch.asarray() would read
/// its buffer as rows of float32.
struct Exporter {
  Tensor tensor;
};

int get_buffer(PyObject* self, Py_buffer* out, int flags) noexcept {
  if (!out) {
    PyErr_SetString(PyExc_BufferError, "no view to fill in");
    return -1;
  }
  out->obj = nullptr;
  try {
    const Tensor& tensor = nb::inst_ptr<Exporter>(self)->tensor;
    if (const std::string problem = objection(tensor, flags); !problem.empty()) {
      PyErr_SetString(PyExc_BufferError, problem.c_str());
      return -1;
    }
    fill_in(*out, std::make_unique<View>(exported(tensor)), flags);
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_BufferError, error.what());
    return -1;
  }
  out->obj = Py_NewRef(self);
  return 0;
}

void release_buffer(PyObject*, Py_buffer* view) noexcept {
  const std::unique_ptr<View> done(static_cast<View*>(view->internal));
}

const PyType_Slot kBufferSlots[] = {
    {Py_bf_getbuffer, reinterpret_cast<void*>(&get_buffer)},
    {Py_bf_releasebuffer, reinterpret_cast<void*>(&release_buffer)},
    {0, nullptr},
};

}  // namespace

nb::object to_memoryview(const Tensor& tensor) {
  const nb::object exporter = nb::cast(Exporter{tensor});
  return owned(PyMemoryView_FromObject(exporter.ptr()));
}

void init_buffer(nb::module_& m) {
  nb::class_<Exporter>(m, "_Exporter", nb::is_final(), nb::type_slots(kBufferSlots));
}

}  // namespace onecopy::python
