// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "binding/module.h"
#include "onecopy/core/device.h"
#include "onecopy/core/layout.h"

namespace onecopy::python::torch {

class TorchSymbols;

/// The functions of torch's C interface (aoti_torch_*) that onecopy uses, and conversions from and to Python's tensors.
/// Thread safety: used with the GIL held.
class AotiShim {
 public:
  using Tensor = void*;  ///< at::Tensor*
  using Code = std::int32_t;
  static constexpr Code kCpuCode = 0;  ///< torch's number for the CPU, c10::DeviceType

  /// The current properties of a tensor. The tensor owns the sizes and strides.
  struct View {
    std::byte* data;
    std::int64_t dim;
    const std::int64_t* sizes;
    const std::int64_t* strides;
    Code dtype, device_type, device_index;
  };

  /// Returns the interface, or null if this torch lacks a function or torch is not imported.
  static const AotiShim* get();

  /// Returns a new reference, which the caller must release(). Throws torch's exceptions.
  Tensor acquire(nb::handle tensor) const;
  void release(Tensor tensor) const noexcept { delete_(tensor); }
  /// Returns the properties of a tensor. Returns nothing, without an error, for a tensor without memory. REQUIRES:
  /// TorchSymbols::is_tensor().
  std::optional<View> view(PyObject* tensor) const noexcept;
  std::size_t element_size(Code dtype) const noexcept { return element_size_(dtype); }
  /// Returns a Python tensor that takes over the reference.
  nb::object to_python(Tensor tensor) const { return to_python(std::span(&tensor, 1))[0]; }
  /// Returns to_python() of each tensor.
  nb::list to_python(std::span<const Tensor> tensors) const;
  /// Allocates a tensor. Throws RuntimeError if torch cannot allocate memory.
  Tensor empty_strided(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides,
                       Code dtype, Code device_type, Code device_index) const;

  /// Returns a tensor of this layout on the storage of `base`, with its dtype. `offset` is in elements from the first
  /// element of `base`. Null if torch refuses or lacks the function.
  Tensor reinterpret(Tensor base, std::span<const std::int64_t> sizes,
                     std::span<const std::int64_t> strides, std::int64_t offset) const noexcept;

  void* data(Tensor tensor) const noexcept;
  Code dtype(Tensor tensor) const noexcept;
  Code device_type(Tensor tensor) const noexcept;

 private:
  AotiShim() = default;
  bool look_up();
  /// Returns the offset of the at::Tensor in a Python object of torch, or 0 if it is not found.
  std::size_t find_place(const TorchSymbols& api) const;
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

/// Tensors to be passed to Python. Releases the tensors that were not passed. Thread safety: as AotiShim.
class MadeTensors {
 public:
  explicit MadeTensors(const AotiShim& shim) : shim_(shim) {}
  MadeTensors& operator=(MadeTensors&&) = delete;
  ~MadeTensors() {
    for (const AotiShim::Tensor one : all_) shim_.release(one);
  }

  void add(AotiShim::Tensor one) { all_.push_back(one); }
  nb::list to_python() { return shim_.to_python(std::exchange(all_, {})); }

 private:
  const AotiShim& shim_;
  std::vector<AotiShim::Tensor> all_;
};

/// A maker of tensors on a storage. For each dtype, torch's Python API makes one tensor without elements, and its C
/// interface makes the other tensors from this base. Thread safety: as AotiShim.
class TensorsOnStorage {
 public:
  TensorsOnStorage(const TorchSymbols& torch, const AotiShim& shim)
      : torch_(torch), shim_(shim), bases_(shim) {}

  void set(nb::object storage, Device device);
  /// Returns a new tensor at an offset in bytes. Null if only torch's Python API can make it.
  AotiShim::Tensor make(const Layout& layout, std::size_t offset);

 private:
  AotiShim::Tensor base_of(DType dtype);

  const TorchSymbols& torch_;
  const AotiShim& shim_;
  MadeTensors bases_;
  nb::object storage_;
  Device device_;
  std::map<DType, AotiShim::Tensor> by_dtype_;
};

}  // namespace onecopy::python::torch
