// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "array/strided.h"
#include "binding/module.h"
#include "onecopy/memory/tensor.h"

namespace onecopy::python {

/// An array of any library whose elements are read: a onecopy tensor, or an object with the buffer protocol (numpy,
/// bytearray, array) or DLPack (torch, jax, cupy). Thread safety: none; made and destroyed with the GIL held.
/// Move-only.
class Source {
 public:
  /// Returns the array of an object. Empty if the object is not an array. Throws unsupported, with `argument` in the
  /// message, for elements, byte orders and devices that onecopy does not support.
  static std::optional<Source> of(nb::handle object, const char* argument);

  DType dtype() const noexcept { return dtype_; }
  const std::vector<std::int64_t>& shape() const noexcept { return elements_.shape; }
  Device device() const noexcept { return tensor_ ? tensor_->device() : kCpu; }
  /// Returns where the elements lie, with strides in bytes. Unspecified for an array on a device.
  const StridedView& elements() const noexcept { return elements_; }
  /// Returns the array itself if it lies in shared memory already.
  const std::optional<Tensor>& ours() const noexcept { return ours_; }

  /// Returns a tensor of onecopy: the array itself, memory of another library on a device in place, or else a row-major
  /// copy. The GIL is released during large copies.
  Tensor shared() const;
  /// Returns the memory of another library on a device, or of a onecopy.Tensor, as it is. REQUIRES: it is one of them.
  const Tensor& in_place() const { return *tensor_; }
  /// Returns shared() as a onecopy.Tensor: the array itself if it is one in shared memory.
  nb::object as_tensor() const;
  Tensor copied() const;
  /// Copies the elements to a tensor. REQUIRES: equal dtype and shape.
  void copy_to(const Tensor& target) const;

 private:
  Source(const Tensor& tensor);
  Source(DType dtype, nb::object memoryview, StridedView elements)
      : dtype_(dtype), keep_(std::move(memoryview)), elements_(std::move(elements)) {}
  static Source of_buffer(const nb::object& memoryview, const char* argument, std::optional<DType> dtype);
  static Source of_dlpack(nb::handle object, const char* argument,
                          const std::optional<nb::python_error>& why);

  DType dtype_;
  nb::object keep_;               ///< a memoryview
  nb::object itself_;             ///< the object of the array, if it is a onecopy.Tensor in shared memory
  std::optional<Tensor> tensor_;  ///< foreign memory by DLPack
  std::optional<Tensor> ours_;
  StridedView elements_;
};

/// Returns the Tensor inside a onecopy.Tensor, or null for other objects.
const Tensor* as_onecopy_tensor(PyObject* object);

/// Throws unsupported for a numpy.ma.MaskedArray, whose memory also contains the masked elements.
void refuse_masked(nb::handle object, const char* argument);

/// Copies the elements. The GIL is released during large copies. REQUIRES: equal shape and element size.
void copy_with_gil(const StridedView& to, const StridedView& from);

}  // namespace onecopy::python
