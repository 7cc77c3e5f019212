// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "binding/module.h"

namespace onecopy::python::torch {

/// The functions of torch's C interface (aoti_torch_*) that we use, and how Python's tensors become such.
/// Thread safety: with the GIL held.
class Shim {
 public:
  using Tensor = void*;  ///< at::Tensor*
  using Code = std::int32_t;

  /// Null if this torch lacks a function.
  static const Shim* get();

  /// A reference of the caller's, for release(). Throws torch's exceptions.
  Tensor acquire(nb::handle tensor) const;
  void release(Tensor tensor) const noexcept { delete_(tensor); }
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
  std::int64_t dim(Tensor tensor) const noexcept;
  Code dtype(Tensor tensor) const noexcept;
  Code device_type(Tensor tensor) const noexcept;
  Code device_index(Tensor tensor) const noexcept;
  const std::int64_t* sizes(Tensor tensor) const noexcept;
  const std::int64_t* strides(Tensor tensor) const noexcept;

 private:
  Shim() = default;
  bool look_up();

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
  nb::object from_tensor_, to_tensors_;
};

}  // namespace onecopy::python::torch
