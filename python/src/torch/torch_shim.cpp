// SPDX-License-Identifier: Apache-2.0
#include "torch/torch_shim.h"

#include <dlfcn.h>

#include <string>

#include "torch/torch_api.h"

namespace onecopy::python::torch {

namespace {

/// The library that torch has loaded; it stays loaded.
void* library(const Api& api) {
  const std::string file = nb::cast<std::string>(nb::str(api.module.attr("__file__")));
  const std::string path = file.substr(0, file.rfind('/')) + "/lib/libtorch_cpu.so";
  return ::dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
}

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

}  // namespace

const Shim* Shim::get() {
  static const Shim* const shim = [] {
    auto* made = new Shim;  // never destroyed: it has objects of Python's
    return made->look_up() ? made : nullptr;
  }();
  return shim;
}

bool Shim::look_up() {
  const Api* api = Api::get();
  if (!api) return false;
  const nb::object aoti = nb::getattr(api->module.attr("_C"), "_aoti", nb::none());
  from_tensor_ = nb::getattr(aoti, "unsafe_alloc_void_ptr_from_tensor", nb::none());
  // Its sister for one tensor keeps the reference for ever (seen in torch 2.13).
  to_tensors_ = nb::getattr(aoti, "alloc_tensors_by_stealing_from_void_ptrs", nb::none());
  void* const lib = library(*api);
  if (lib) find(lib, "aoti_torch__reinterpret_tensor", reinterpret_);
  return lib && !from_tensor_.is_none() && !to_tensors_.is_none() &&
         find(lib, "aoti_torch_delete_tensor_object", delete_) &&
         find(lib, "aoti_torch_empty_strided", empty_strided_) &&
         find(lib, "aoti_torch_get_data_ptr", data_) && find(lib, "aoti_torch_get_dim", dim_) &&
         find(lib, "aoti_torch_get_dtype", dtype_) &&
         find(lib, "aoti_torch_get_device_type", device_type_) &&
         find(lib, "aoti_torch_get_device_index", device_index_) &&
         find(lib, "aoti_torch_get_sizes", sizes_) && find(lib, "aoti_torch_get_strides", strides_);
}

Shim::Tensor Shim::acquire(nb::handle tensor) const {
  const nb::object capsule = from_tensor_(tensor);
  void* const pointer = PyCapsule_GetPointer(capsule.ptr(), PyCapsule_GetName(capsule.ptr()));
  if (!pointer) throw nb::python_error();
  return pointer;
}

nb::object Shim::to_python(Tensor tensor) const { return to_python(std::span(&tensor, 1))[0]; }

nb::list Shim::to_python(std::span<const Tensor> tensors) const {
  nb::list capsules;
  for (const Tensor tensor : tensors) {
    PyObject* const capsule = PyCapsule_New(tensor, nullptr, nullptr);
    if (!capsule) throw nb::python_error();
    capsules.append(nb::steal(capsule));
  }
  return nb::list(to_tensors_(capsules));
}

Shim::Tensor Shim::empty_strided(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides,
                                 Code dtype, Code device_type, Code device_index) const {
  Tensor made = nullptr;
  const auto dim = static_cast<std::int64_t>(sizes.size());
  if (empty_strided_(dim, sizes.data(), strides.data(), dtype, device_type, device_index, &made) == 0)
    return made;
  PyErr_SetString(PyExc_RuntimeError, "torch has no memory for the results of a graph");
  throw nb::python_error();
}

Shim::Tensor Shim::reinterpret(Tensor base, std::span<const std::int64_t> sizes,
                               std::span<const std::int64_t> strides, std::int64_t offset) const noexcept {
  Tensor made = nullptr;
  if (!reinterpret_) return nullptr;
  const auto dim = static_cast<std::int64_t>(sizes.size());
  return reinterpret_(base, dim, sizes.data(), strides.data(), offset, &made) == 0 ? made : nullptr;
}

void* Shim::data(Tensor tensor) const noexcept {
  void* data = nullptr;
  data_(tensor, &data);
  return data;
}

std::int64_t Shim::dim(Tensor tensor) const noexcept {
  std::int64_t dim = -1;
  dim_(tensor, &dim);
  return dim;
}

Shim::Code Shim::dtype(Tensor tensor) const noexcept {
  Code code = -1;
  dtype_(tensor, &code);
  return code;
}

Shim::Code Shim::device_type(Tensor tensor) const noexcept {
  Code code = -1;
  device_type_(tensor, &code);
  return code;
}

Shim::Code Shim::device_index(Tensor tensor) const noexcept {
  Code code = -1;
  device_index_(tensor, &code);
  return code;
}

const std::int64_t* Shim::sizes(Tensor tensor) const noexcept {
  std::int64_t* sizes = nullptr;
  sizes_(tensor, &sizes);
  return sizes;
}

const std::int64_t* Shim::strides(Tensor tensor) const noexcept {
  std::int64_t* strides = nullptr;
  strides_(tensor, &strides);
  return strides;
}

}  // namespace onecopy::python::torch
