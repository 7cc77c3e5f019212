// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "binding/module.h"

namespace onecopy::python::torch {

class Api;

/// The functions of torch's C interface (aoti_torch_*) that we use, and how Python's tensors become such.
/// Thread safety: with the GIL held.
class Shim {
 public:
  using Tensor = void*;  ///< at::Tensor*
  using Code = std::int32_t;
  static constexpr Code kCpuCode = 0;  ///< torch's number for the CPU, c10::DeviceType

  /// A tensor as it is at present; sizes and strides are the tensor's own.
  struct View {
    std::byte* data;
    std::int64_t dim;
    const std::int64_t* sizes;
    const std::int64_t* strides;
    Code dtype, device_type, device_index;
  };

  /// Null if this torch lacks a function, and as long as torch is not imported.
  static const Shim* get();

  /// A reference of the caller's, for release(). Throws torch's exceptions.
  Tensor acquire(nb::handle tensor) const;
  void release(Tensor tensor) const noexcept { delete_(tensor); }
  /// Empty, and no error, for a tensor without memory of its own. REQUIRES: Api::is_tensor().
  std::optional<View> view(PyObject* tensor) const noexcept;
  std::size_t element_size(Code dtype) const noexcept { return element_size_(dtype); }
  /// A tensor of Python's, which takes over the reference.
  nb::object to_python(Tensor tensor) const;
  /// to_python() of each.
  nb::list to_python(std::span<const Tensor> tensors) const;
  /// Throws RuntimeError if torch has no memory.
  Tensor empty_strided(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides,
                       Code dtype, Code device_type, Code device_index) const;

  /// A tensor of that layout on the storage of `base` and with its dtype. `offset` counts elements from the base's
  /// first one. Null if torch refuses, or cannot do it.
  Tensor reinterpret(Tensor base, std::span<const std::int64_t> sizes,
                     std::span<const std::int64_t> strides, std::int64_t offset) const noexcept;

  void* data(Tensor tensor) const noexcept;
  Code dtype(Tensor tensor) const noexcept;
  Code device_type(Tensor tensor) const noexcept;

 private:
  Shim() = default;
  bool look_up();
  /// Where in an object of Python's torch keeps its tensor: 0 if that is not found.
  std::size_t find_place(const Api& api) const;
  std::optional<View> view_of(Tensor tensor) const noexcept;

  int (*delete_)(Tensor) = nullptr;
  int (*empty_strided_)(std::int64_t, const std::int64_t*, const std::int64_t*, Code, Code, Code,
                        Tensor*) = nullptr;
  int (*reinterpret_)(Tensor, std::int64_t, const std::int64_t*, const std::int64_t*, std::int64_t,
                      Tensor*) = nullptr;  ///< none: this torch has none
  int (*data_)(Tensor, void**) = nullptr;
  int (*dim_)(Tensor, std::int64_t*) = nullptr;
  int (*dtype_)(Tensor, Code*) = nullptr;
  int (*device_type_)(Tensor, Code*) = nullptr;
  int (*device_index_)(Tensor, Code*) = nullptr;
  int (*sizes_)(Tensor, std::int64_t**) = nullptr;
  int (*strides_)(Tensor, std::int64_t**) = nullptr;
  std::size_t (*element_size_)(Code) = nullptr;
  nb::object from_tensor_, to_tensors_;
  std::size_t place_ = 0;  ///< of the tensor in its object; 0: asked of torch each time
};

}  // namespace onecopy::python::torch
