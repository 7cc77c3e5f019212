// SPDX-License-Identifier: Apache-2.0
#include "torch/torch_api.h"

#include <nanobind/stl/string.h>

#include <string_view>

#include "binding/args.h"
#include "onecopy/core/error.h"

namespace onecopy::python::torch {
namespace {

/// Returns the module torch if it was imported completely, or else none.
nb::object imported_torch() {
  static PyObject* const name = PyUnicode_InternFromString("torch");  // every put() uses it
  PyObject* module = PyDict_GetItem(PyImport_GetModuleDict(), name);  // borrowed
  if (!module || module == Py_None) return {};                        // None forbids the import
  const nb::handle torch(module);
  const nb::object spec = nb::getattr(torch, "__spec__", nb::none());
  if (nb::cast<bool>(nb::getattr(spec, "_initializing", nb::bool_(false)))) return {};
  return nb::borrow(torch);
}

std::optional<DeviceType> device_type(std::string_view name) {
  for (const DeviceType type : backend_types())
    if (onecopy::name(type) == name) return type;
  return std::nullopt;
}

/// A DLPack capsule of the first form, for torch without the exchange table.
struct OldForm {
  DLManagedTensor managed;
  DLManagedTensorVersioned* whole;

  static void destroy(DLManagedTensor* self) {
    auto* form = static_cast<OldForm*>(self->manager_ctx);
    form->whole->deleter(form->whole);
    delete form;
  }
  static void drop_capsule(PyObject* capsule) {
    if (!PyCapsule_IsValid(capsule, "dltensor")) return;  // taken over
    auto* managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"));
    managed->deleter(managed);
  }
};

nb::object capsule_of(DLManagedTensorVersioned* managed) {
  auto* form = new OldForm{{managed->dl_tensor, nullptr, &OldForm::destroy}, managed};
  form->managed.manager_ctx = form;
  PyObject* capsule = PyCapsule_New(&form->managed, "dltensor", &OldForm::drop_capsule);
  if (capsule) return nb::steal(capsule);
  OldForm::destroy(&form->managed);
  throw nb::python_error();
}

}  // namespace

void refuse_no_memory() {
  throw Error(ErrorCode::unsupported,
              "this storage has no memory of its own; share the tensors that its tensor is made of, such "
              "as the to_local() of a DTensor");
}

/// Returns the device of a tensor or storage; torch and onecopy use the same names for types of devices.
std::optional<Device> device_of(nb::handle object) {
  const nb::object device = object.attr("device");
  const auto type = device_type(nb::cast<std::string>(device.attr("type")));
  if (!type) return std::nullopt;
  if (*type == DeviceType::cpu) return kCpu;
  return Device{*type, nb::cast<std::int16_t>(device.attr("index"))};
}

const TorchSymbols* TorchSymbols::get() {
  if (the_only_) return the_only_;
  nb::object torch = imported_torch();
  if (!torch.is_valid()) return nullptr;
  the_only_ = new TorchSymbols(std::move(torch));
  return the_only_;
}

const TorchSymbols& TorchSymbols::require() {
  const TorchSymbols* found = get();
  if (!found) throw Error(ErrorCode::unsupported, "this needs torch; import it first");
  found->require_names();
  return *found;
}

TorchSymbols::TorchSymbols(nb::object torch) : module(std::move(torch)) {
  tensor_ = module.attr("Tensor");
  tensor_type = reinterpret_cast<PyTypeObject*>(tensor_.ptr());
  parameter_type =
      reinterpret_cast<PyTypeObject*>(nb::object(module.attr("nn").attr("Parameter")).release().ptr());
  storage_type = module.attr("UntypedStorage");
  table_ = find_table(tensor_);
  for (auto i = static_cast<std::size_t>(kFirstDType); i < dtypes_.size(); ++i)
    dtypes_[i] = nb::getattr(module, std::string(name(static_cast<DType>(i))).c_str(), nb::none());
  requires_grad_ = nb::str("requires_grad");
  dtype_ = nb::str("dtype");
  no_elements_ = nb::make_tuple(0);
  data_ = nb::str("data");
  cdata_ = nb::str("_cdata");
  cpu_ = module.attr("device")("cpu");
  look_up_tensors();
  look_up_storages();
  measure_new();
}

nb::object TorchSymbols::needed(nb::handle owner, const char* owner_name, const char* name) {
  nb::object found = nb::getattr(owner, name, nb::none());
  if (found.is_none() && absent_.empty()) absent_ = std::string(owner_name) + "." + name;
  return found;
}

void TorchSymbols::look_up_tensors() {
  const auto of_tensor = [&](const char* name) { return needed(tensor_, "torch.Tensor", name); };
  empty_ = needed(module, "torch", "empty");
  empty_like_ = needed(module, "torch", "empty_like");
  strided_ = needed(module, "torch", "strided");
  set_ = of_tensor("set_");
  size_ = of_tensor("size");
  stride_ = of_tensor("stride");
  untyped_storage_ = of_tensor("untyped_storage");
  storage_offset_ = of_tensor("storage_offset");
  is_conj_ = of_tensor("is_conj");
  is_inference_ = of_tensor("is_inference");
  is_neg_ = of_tensor("is_neg");
  has_names_ = nb::getattr(tensor_, "has_names", nb::none());
  neg_view_ = nb::getattr(tensor_, "_neg_view", nb::none());
  make_subclass_ = nb::getattr(tensor_, "_make_subclass", nb::none());
  import_capsule_ = nb::getattr(module.attr("_C"), "_from_dlpack", nb::none());
  if (import_capsule_.is_none()) import_capsule_ = needed(module, "torch", "from_dlpack");
}

void TorchSymbols::look_up_storages() {
  const auto of_storage = [&](const char* name) {
    return needed(storage_type, "torch.UntypedStorage", name);
  };
  data_ptr_ = of_storage("data_ptr");
  nbytes_ = of_storage("nbytes");
  resizable_ = of_storage("resizable");
  weak_ref_ = of_storage("_weak_ref");
  from_weak_ = of_storage("_new_with_weak_ptr");
  free_weak_ = of_storage("_free_weak_ref");
  const nb::object base = nb::getattr(module.attr("_C"), "StorageBase", nb::none());
  is_shared_ = needed(base, "torch._C.StorageBase", "is_shared");  // which is never replaced
  swap_ = nb::getattr(storage_type, "_swap_data_ptr_", nb::none());
  descriptor_ = nb::getattr(storage_type, "_get_shared_fd", nb::none());
  share_descriptor_ = nb::getattr(storage_type, "_share_fd_cpu_", nb::none());
  share_name_ = nb::getattr(storage_type, "_share_filename_cpu_", nb::none());
}

/// Counts the references to the storage of a new tensor, for is_alone(). If torch lacks one of the names, is_alone()
/// returns false, and a tensor is moved with the other tensors of its storage.
void TorchSymbols::measure_new() {
  use_count_ = nb::getattr(module.attr("_C"), "_storage_Use_Count", nb::none());
  const nb::object no_modes_type = nb::getattr(module.attr("_C"), "DisableTorchFunction", nb::none());
  if (no_modes_type.is_none() || !nb::hasattr(storage_type, "_cdata")) use_count_ = nb::none();
  if (use_count_.is_none() || !absent_.empty()) return;
  const nb::object no_modes = no_modes_type();  // a mode might keep the tensor it sees
  no_modes.attr("__enter__")();
  const nb::object made = empty_(no_elements_, nb::arg("device") = cpu_);
  of_new_ = references(storage_of(made));
  no_modes.attr("__exit__")(nb::none(), nb::none(), nb::none());
}

void TorchSymbols::require_names() const {
  if (absent_.empty()) return;
  refuse_absent(absent_);
}

void TorchSymbols::refuse_absent(const std::string& name) const {
  throw Error(ErrorCode::unsupported,
              "torch " + std::string(nb::str(module.attr("__version__")).c_str()) + " has no " + name +
                  ", which onecopy needs for this tensor; use a version of torch that has it");
}

nb::object TorchSymbols::call_if_there(const nb::object& method, const char* name, nb::handle self) const {
  if (method.is_none()) refuse_absent(name);
  return call(method, self);
}

nb::object TorchSymbols::shared_descriptor(nb::handle storage) const {
  return call_if_there(descriptor_, "torch.UntypedStorage._get_shared_fd", storage);
}

nb::object TorchSymbols::share_by_descriptor(nb::handle storage) const {
  return call_if_there(share_descriptor_, "torch.UntypedStorage._share_fd_cpu_", storage);
}

nb::object TorchSymbols::share_by_name(nb::handle storage) const {
  return call_if_there(share_name_, "torch.UntypedStorage._share_filename_cpu_", storage);
}

nb::object TorchSymbols::neg_view(nb::handle tensor) const {
  return call_if_there(neg_view_, "torch.Tensor._neg_view", tensor);
}

bool TorchSymbols::is_ordinary(nb::handle tensor) const {
  const auto is = [&](const nb::object& method) { return call(method, tensor).is(nb::handle(Py_True)); };
  return !is(is_inference_) && (has_names_.is_none() || !is(has_names_));
}

bool TorchSymbols::is_alone(const nb::object& storage) const {
  return !use_count_.is_none() && references(storage) == of_new_;
}

TorchSymbols::References TorchSymbols::references(const nb::object& storage) const {
  return {number(use_count_(get(storage, cdata_))), Py_REFCNT(storage.ptr())};
}

bool TorchSymbols::try_put_on_storage_of(nb::handle tensor, nb::handle twin) const noexcept {
  if (PyObject_SetAttr(tensor.ptr(), data_.ptr(), twin.ptr()) == 0) return true;
  PyErr_Clear();
  return false;
}

const TorchSymbols::ExchangeTable* TorchSymbols::find_table(nb::handle tensor_type) {
  const nb::object capsule = nb::getattr(tensor_type, "__dlpack_c_exchange_api__", nb::none());
  if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return nullptr;
  const auto* table =
      static_cast<const ExchangeTable*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (table && table->version.major > 1) table = table->previous;
  return table && table->version.major == 1 ? table : nullptr;
}

Device TorchSymbols::device_of_storage(nb::handle storage) const {
  if (const auto device = device_of(storage)) return *device;
  throw Error(ErrorCode::unsupported,
              "only storages on the cpu and on CUDA and Ascend devices can be shared");
}

bool TorchSymbols::can_import(DType dtype) noexcept { return dtype < DType::f8_e4m3fn; }

nb::object TorchSymbols::import(DLManagedTensorVersioned* managed) const {
  if (!table_ || !table_->object_from_managed) return import_capsule_(capsule_of(managed));
  void* object = nullptr;
  if (table_->object_from_managed(managed, &object) == 0) return nb::steal(static_cast<PyObject*>(object));
  throw nb::python_error();
}

std::byte* TorchSymbols::data(nb::handle storage) const {
  try {
    return reinterpret_cast<std::byte*>(number(call(data_ptr_, storage)));
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_RuntimeError)) throw;
  }
  refuse_no_memory();
}

}  // namespace onecopy::python::torch
