// SPDX-License-Identifier: Apache-2.0
#include "torch/torch_shim.h"

#include <dlfcn.h>

#include <cstring>
#include <exception>
#include <memory>
#include <string>

#include "torch/torch_api.h"

namespace onecopy::python::torch {

namespace {

/// Returns the library that torch has loaded, which stays loaded.
void* library(const TorchSymbols& api) {
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

/// The static variable has no initializer: look_up() runs Python, which lets other threads run, and they would wait for
/// the initializer with the GIL held.
const AotiShim* AotiShim::get() {
  static const AotiShim* known = nullptr;  // never destroyed: it holds objects of Python's
  static bool is_missing = false;
  if (known || is_missing || !TorchSymbols::get()) return known;
  std::unique_ptr<AotiShim> made(new AotiShim);
  const bool has_all = made->look_up();
  if (known) return known;  // another thread was quicker while this one ran Python
  if (has_all) known = made.release();
  is_missing = !has_all;
  return known;
}

bool AotiShim::look_up() {
  const TorchSymbols* api = TorchSymbols::get();
  if (!api) return false;
  const nb::object aoti = nb::getattr(api->module.attr("_C"), "_aoti", nb::none());
  from_tensor_ = nb::getattr(aoti, "unsafe_alloc_void_ptr_from_tensor", nb::none());
  // The function for a single tensor leaks the reference (seen in torch 2.13).
  to_tensors_ = nb::getattr(aoti, "alloc_tensors_by_stealing_from_void_ptrs", nb::none());
  void* const lib = library(*api);
  if (lib) find(lib, "aoti_torch__reinterpret_tensor", reinterpret_);
  const bool has_all =
      lib && !from_tensor_.is_none() && !to_tensors_.is_none() &&
      find(lib, "aoti_torch_delete_tensor_object", delete_) &&
      find(lib, "aoti_torch_empty_strided", empty_strided_) &&
      find(lib, "aoti_torch_get_data_ptr", data_) && find(lib, "aoti_torch_get_dim", dim_) &&
      find(lib, "aoti_torch_get_dtype", dtype_) && find(lib, "aoti_torch_get_device_type", device_type_) &&
      find(lib, "aoti_torch_get_device_index", device_index_) &&
      find(lib, "aoti_torch_get_sizes", sizes_) && find(lib, "aoti_torch_get_strides", strides_) &&
      find(lib, "aoti_torch_dtype_element_size", element_size_);
  if (has_all) place_ = find_place(*api);
  return has_all;
}

/// An at::Tensor is one pointer. An offset is accepted if two tensors have their pointer there.
std::size_t AotiShim::find_place(const TorchSymbols& api) const {
  const nb::object one = api.module.attr("empty")(0), other = api.module.attr("empty")(0);
  const auto size =
      nb::cast<std::size_t>(nb::handle(reinterpret_cast<PyObject*>(api.tensor_type)).attr("__basicsize__"));
  const Tensor in_one = acquire(one), in_other = acquire(other);
  const auto has = [](const nb::object& object, std::size_t place, Tensor tensor) {
    return std::memcmp(reinterpret_cast<const std::byte*>(object.ptr()) + place, tensor, sizeof(void*)) ==
           0;
  };
  std::size_t place = sizeof(PyObject);
  while (place < size && !(has(one, place, in_one) && has(other, place, in_other))) place += sizeof(void*);
  release(in_one);
  release(in_other);
  return place < size ? place : 0;
}

std::optional<AotiShim::View> AotiShim::view_of(Tensor tensor) const noexcept {
  View view{};
  void* data = nullptr;
  std::int64_t *sizes = nullptr, *strides = nullptr;
  if (data_(tensor, &data) != 0 || dim_(tensor, &view.dim) != 0 || sizes_(tensor, &sizes) != 0 ||
      strides_(tensor, &strides) != 0 || dtype_(tensor, &view.dtype) != 0 ||
      device_type_(tensor, &view.device_type) != 0 || device_index_(tensor, &view.device_index) != 0)
    return std::nullopt;
  view.data = static_cast<std::byte*>(data);
  view.sizes = sizes;
  view.strides = strides;
  return view;
}

std::optional<AotiShim::View> AotiShim::view(PyObject* tensor) const noexcept {
  if (place_ != 0) return view_of(reinterpret_cast<std::byte*>(tensor) + place_);
  try {
    const Tensor acquired = acquire(tensor);
    const auto view = view_of(acquired);
    release(acquired);
    return view;
  } catch (const std::exception&) {
    PyErr_Clear();
    return std::nullopt;
  }
}

AotiShim::Tensor AotiShim::acquire(nb::handle tensor) const {
  const nb::object capsule = from_tensor_(tensor);
  void* const pointer = PyCapsule_GetPointer(capsule.ptr(), PyCapsule_GetName(capsule.ptr()));
  if (!pointer) throw nb::python_error();
  return pointer;
}

nb::list AotiShim::to_python(std::span<const Tensor> tensors) const {
  nb::list capsules;
  for (const Tensor tensor : tensors) {
    PyObject* const capsule = PyCapsule_New(tensor, nullptr, nullptr);
    if (!capsule) throw nb::python_error();
    capsules.append(nb::steal(capsule));
  }
  return nb::list(to_tensors_(capsules));
}

AotiShim::Tensor AotiShim::empty_strided(std::span<const std::int64_t> sizes,
                                         std::span<const std::int64_t> strides, Code dtype,
                                         Code device_type, Code device_index) const {
  Tensor made = nullptr;
  const auto dim = static_cast<std::int64_t>(sizes.size());
  if (empty_strided_(dim, sizes.data(), strides.data(), dtype, device_type, device_index, &made) == 0)
    return made;
  PyErr_SetString(PyExc_RuntimeError, "torch cannot allocate memory for the results of a graph");
  throw nb::python_error();
}

AotiShim::Tensor AotiShim::reinterpret(Tensor base, std::span<const std::int64_t> sizes,
                                       std::span<const std::int64_t> strides,
                                       std::int64_t offset) const noexcept {
  Tensor made = nullptr;
  if (!reinterpret_) return nullptr;
  const auto dim = static_cast<std::int64_t>(sizes.size());
  return reinterpret_(base, dim, sizes.data(), strides.data(), offset, &made) == 0 ? made : nullptr;
}

void* AotiShim::data(Tensor tensor) const noexcept {
  void* data = nullptr;
  data_(tensor, &data);
  return data;
}

AotiShim::Code AotiShim::dtype(Tensor tensor) const noexcept {
  Code code = -1;
  dtype_(tensor, &code);
  return code;
}

AotiShim::Code AotiShim::device_type(Tensor tensor) const noexcept {
  Code code = -1;
  device_type_(tensor, &code);
  return code;
}

void TensorsOnStorage::set(nb::object storage, Device device) {
  by_dtype_.clear();
  storage_ = std::move(storage);
  device_ = device;
}

AotiShim::Tensor TensorsOnStorage::make(const Layout& layout, std::size_t offset) {
  const std::size_t element = size_of(layout.dtype());
  if (layout.numel() == 0 || offset % element != 0) return nullptr;
  const AotiShim::Tensor base = base_of(layout.dtype());
  return base ? shim_.reinterpret(base, layout.shape(), layout.strides(),
                                  static_cast<std::int64_t>(offset / element))
              : nullptr;
}

/// Returns the base of the dtype, or null if torch makes tensors of another kind now, as in inference mode.
AotiShim::Tensor TensorsOnStorage::base_of(DType dtype) {
  const auto [at, is_new] = by_dtype_.try_emplace(dtype, nullptr);
  if (!is_new) return at->second;
  const nb::object base = torch_.on_storage(storage_, Layout(dtype, {0}), 0, device_);
  if (!torch_.is_tensor(base.ptr()) || !torch_.is_ordinary(base)) return nullptr;
  at->second = shim_.acquire(base);
  bases_.add(at->second);
  return at->second;
}

}  // namespace onecopy::python::torch
