// SPDX-License-Identifier: Apache-2.0
#include "torch/torch_api.h"

#include <nanobind/stl/string.h>

#include <string>
#include <string_view>
#include <vector>

#include "binding/args.h"
#include "device/backend.h"
#include "memory/dlpack_dtype.h"
#include "onecopy/core/error.h"
#include "torch/torch.h"

namespace onecopy::python::torch {
namespace {

constexpr std::int16_t kCurrentDevice = -1;  // for torch

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

std::vector<std::int64_t> numbers(nb::handle tuple) {
  std::vector<std::int64_t> values;
  for (const nb::handle value : tuple) values.push_back(nb::cast<std::int64_t>(value));
  return values;
}

std::optional<DeviceType> device_type(std::string_view name) {
  for (const DeviceType type : backend_types())
    if (onecopy::name(type) == name) return type;
  return std::nullopt;
}

/// Returns whether DLPack's code of the dtype also stands for torch's integers of fewer bits, such as int4.
bool is_int_of_bytes(DType dtype) noexcept { return dtype == DType::i8 || dtype == DType::u8; }

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
  throw Error(
      ErrorCode::unsupported,
      "this storage has no memory of its own; share the tensors that its tensor is made of, such as "
      "the to_local() of a DTensor");
}

/// Returns the device of a tensor or storage; torch and onecopy use the same names for types of devices.
std::optional<Device> device_of(nb::handle object) {
  const nb::object device = object.attr("device");
  const auto type = device_type(nb::cast<std::string>(device.attr("type")));
  if (!type) return std::nullopt;
  if (*type == DeviceType::cpu) return kCpu;
  return Device{*type, nb::cast<std::int16_t>(device.attr("index"))};
}

std::optional<Placement> placement_of(nb::handle tensor) {
  return TorchSymbols::get()->placed(tensor.ptr());
}

/// Forgets in a forked child which devices torch has used: torch refuses to use them there.
const ForkHook TorchSymbols::kForkHook{ForkRank::leaves, {.in_child = [] {
                                         if (const TorchSymbols* api = the_only_) api->used_ = 0;
                                       }}};

const TorchSymbols* TorchSymbols::get() {
  if (the_only_) return the_only_;
  nb::object torch = imported_torch();
  if (!torch.is_valid()) return nullptr;
  the_only_ = new TorchSymbols(std::move(torch));
  return the_only_;
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

std::optional<Placement> TorchSymbols::placed(PyObject* tensor) const {
  if (table_ && table_->view_of_object)
    if (auto placed = placed_by_table(tensor)) return placed;
  return placed_by_attributes(tensor);
}

std::optional<Placement> TorchSymbols::placed_by_table(PyObject* tensor) const {
  DLTensor dl;
  if (table_->view_of_object(tensor, &dl) != 0) {
    PyErr_Clear();  // sparse, quantized, meta, a dtype that DLPack does not have
    return std::nullopt;
  }
  // DLPack has one number for all devices of extensions; torch's attributes name them.
  if (dl.device.device_type != kDLCpu && dl.device.device_type != kDLCuda) return std::nullopt;
  const auto ndim = static_cast<std::size_t>(dl.ndim);
  try {
    const DType dtype = from_dl(dl.dtype);
    if (is_int_of_bytes(dtype) && !get(tensor, dtype_).is(dtypes_[static_cast<std::size_t>(dtype)]))
      return std::nullopt;
    return Placement{Layout(dtype, std::span(dl.shape, ndim), std::span(dl.strides, ndim)),
                     from_dl(dl.device), static_cast<std::byte*>(dl.data) + dl.byte_offset};
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::optional<Placement> TorchSymbols::placed_by_attributes(nb::handle tensor) const {
  const auto device = device_of(tensor);
  if (!device || !tensor.attr("layout").is(strided_) || nb::cast<bool>(tensor.attr("is_nested")))
    return std::nullopt;
  const nb::object dtype = tensor.attr("dtype");
  for (auto i = static_cast<std::size_t>(kFirstDType); i < dtypes_.size(); ++i)
    if (dtypes_[i].is(dtype))
      return Placement{
          Layout(static_cast<DType>(i), numbers(tensor.attr("shape")), numbers(tensor.attr("stride")())),
          *device, reinterpret_cast<std::byte*>(number(tensor.attr("data_ptr")()))};
  return std::nullopt;
}

Device TorchSymbols::device_of_storage(nb::handle storage) const {
  if (const auto device = device_of(storage)) return *device;
  throw Error(ErrorCode::unsupported,
              "only storages on the cpu and on CUDA and Ascend devices can be shared");
}

nb::object TorchSymbols::part_for(DeviceType type) const {
  return nb::getattr(module, std::string(onecopy::name(type)).c_str(), nb::none());
}

/// Reads torch.cuda._initialized first, which calls no Python code, since every get() calls this function.
bool TorchSymbols::has_used(DeviceType type) const {
  const std::uint32_t bit = std::uint32_t{1} << static_cast<unsigned>(type);
  if ((used_ & bit) != 0) return true;
  const nb::object part = part_for(type);
  if (part.is_none()) return false;
  if (type == DeviceType::cuda && nb::getattr(part, "_initialized", nb::none()).is(nb::handle(Py_False)))
    return false;
  if (!nb::cast<bool>(part.attr("is_initialized")())) return false;
  used_ |= bit;
  return true;
}

/// Calls torch's init(), since a tensor on foreign memory does not make torch initialise the device.
void TorchSymbols::use(Device device) const {
  if (device.type == DeviceType::cpu || has_used(device.type)) return;
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::unsupported,
                "torch cannot use " + device.str() + ": " + why +
                    "; open the tensor without framework=\"torch\", or copy it to the cpu first: .cpu()");
  };
  const nb::object part = part_for(device.type);
  const std::string name(onecopy::name(device.type));
  if (part.is_none()) refuse("there is no torch." + name + ", import torch_" + name + " for it");
  try {
    part.attr("init")();
  } catch (nb::python_error& error) {
    refuse(nb::str(error.value()).c_str());
  }
}

std::int16_t TorchSymbols::current_ordinal(DeviceType type) const {
  if (!has_used(type)) return 0;
  return nb::cast<std::int16_t>(part_for(type).attr("current_device")());
}

/// Uses the exchange table for CUDA only, since it returns a stream of CUDA for any device.
Stream TorchSymbols::current_stream(Device device) const {
  if (!has_used(device.type)) return {};
  void* stream = nullptr;
  if (device.type == DeviceType::cuda && table_ && table_->current_stream &&
      table_->current_stream(kDLCuda, device.index, &stream) == 0)
    return {stream};
  PyErr_Clear();
  const nb::object find = part_for(device.type).attr("current_stream");
  const nb::object current = device.index == kCurrentDevice ? find() : find(device.index);
  const std::string attribute = std::string(onecopy::name(device.type)) + "_stream";
  return {reinterpret_cast<void*>(number(current.attr(attribute.c_str())))};
}

/// Returns early for the default stream, which is never captured. Uses no device but the current one.
Stream TorchSymbols::captured_stream() const {
  const Stream stream = current_stream({DeviceType::cuda, kCurrentDevice});
  if (!stream.native) return {};
  const int ordinal = current_ordinal(DeviceType::cuda);
  return backend(DeviceType::cuda).is_captured(ordinal, stream) ? stream : Stream{};
}

nb::object TorchSymbols::device(Device device) const {
  if (device == kCpu) return cpu_;
  return module.attr("device")(device.str());
}

bool TorchSymbols::can_import(DType dtype) noexcept { return dtype < DType::f8_e4m3fn; }

nb::object TorchSymbols::import(DLManagedTensorVersioned* managed) const {
  if (!table_ || !table_->object_from_managed) return import_capsule_(capsule_of(managed));
  void* object = nullptr;
  if (table_->object_from_managed(managed, &object) == 0) return nb::steal(static_cast<PyObject*>(object));
  throw nb::python_error();
}

nb::object TorchSymbols::on_storage(nb::handle storage, const Layout& layout, std::size_t offset,
                                    Device where) const {
  if (offset % size_of(layout.dtype()) != 0)
    throw Error(
        ErrorCode::unsupported,
        "the offset of this tensor in its block is not a multiple of its element size, so torch cannot "
        "open it; open it without framework=\"torch\", or send a copy");
  nb::object tensor =
      empty_(no_elements_, nb::arg("dtype") = needed(layout.dtype()), nb::arg("device") = device(where));
  set_(tensor, storage, offset / size_of(layout.dtype()), tuple_of(layout.shape()),
       tuple_of(layout.strides()));
  return tensor;
}

const nb::object& TorchSymbols::needed(DType dtype) const {
  const nb::object& theirs = dtypes_[static_cast<std::size_t>(dtype)];
  if (!theirs.is_none()) return theirs;
  throw Error(ErrorCode::unsupported,
              "this version of torch has no dtype " + std::string(name(dtype)) + "; use a newer one");
}

nb::object TorchSymbols::make(const Layout& layout) const {
  return empty_(tuple_of(layout.shape()), nb::arg("dtype") = needed(layout.dtype()),
                nb::arg("device") = cpu_);
}

/// Does not keep a tensor of another class as a pattern, such as a fake tensor made in a mode of torch.
nb::object TorchSymbols::make_again(const Layout& layout) const {
  std::size_t kind = static_cast<std::size_t>(layout.dtype()) + layout.ndim();
  for (const std::int64_t size : layout.shape()) kind = kind * 31 + static_cast<std::size_t>(size);
  Pattern& pattern = patterns_[kind % patterns_.size()];
  if (!pattern.tensor.is_valid() || !(pattern.layout == layout)) {
    nb::object made = make(layout);
    if (is_tensor(made.ptr())) pattern = {layout, made};
    return made;
  }
  const nb::object like = pattern.tensor;
  return call(empty_like_, like);
}

nb::object TorchSymbols::as_parameter(nb::handle tensor, bool requires_grad) const {
  const nb::handle parameter(reinterpret_cast<PyObject*>(parameter_type));
  if (make_subclass_.is_none()) return parameter(tensor, requires_grad);
  return make_subclass_(parameter, tensor, requires_grad);
}

nb::object TorchSymbols::as_leaf(nb::object tensor, bool is_parameter, bool requires_grad) const {
  if (is_parameter) return as_parameter(tensor, requires_grad);
  if (requires_grad) tensor.attr("requires_grad_")();
  return tensor;
}

std::byte* TorchSymbols::data(nb::handle storage) const {
  try {
    return reinterpret_cast<std::byte*>(number(call(data_ptr_, storage)));
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_RuntimeError)) throw;
  }
  refuse_no_memory();
}

std::uintptr_t TorchSymbols::weak(nb::handle storage) const { return number(call(weak_ref_, storage)); }

nb::object TorchSymbols::upgrade(std::uintptr_t weak) const { return from_weak_(weak); }

void TorchSymbols::free_weak(std::uintptr_t weak) const { free_weak_(weak); }

}  // namespace onecopy::python::torch
