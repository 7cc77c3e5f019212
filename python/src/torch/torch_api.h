// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "binding/module.h"
#include "device/backend.h"
#include "onecopy/core/dtype.h"
#include "onecopy/core/layout.h"
#include "onecopy/memory/dlpack.h"
#include "os/fork_hook.h"
#include "torch/torch.h"

namespace onecopy::python::torch {

/// Throws unsupported for the storage of a tensor that is made of other tensors, which has a size but no address.
[[noreturn]] void refuse_no_memory();

/// The parts of torch that onecopy uses, looked up once per interpreter, and only here (Python code has
/// onecopy/multiprocessing/_torch_names.py). A missing name is not an error until it is needed: then a slower public
/// function is used, or require_names() and the function that needs the name throw unsupported with the name.
///
/// The fast path is torch.Tensor.__dlpack_c_exchange_api__, the table of C functions of torch 2.10 and later. Without
/// it, the attributes of tensors and DLPack capsules give the same results more slowly.
///
/// Never destroyed, since storages may outlive the module. Thread safety: used with the GIL held.
class TorchSymbols {
 public:
  /// Returns the object, or null until torch has been imported completely.
  static const TorchSymbols* get();

  /// Returns the object. Throws unsupported without torch, or as require_names().
  static const TorchSymbols& require();
  /// Throws unsupported if a name is missing that sharing and opening any torch tensor needs.
  void require_names() const;

  /// The first part of DLPack's exchange table, version 1; see dlpack.h of DLPack 1.2.
  struct ExchangeTable {
    DLPackVersion version;
    ExchangeTable* previous;
    int (*allocate)(const DLTensor* prototype, DLManagedTensorVersioned** out, void* context,
                    void (*set_error)(void* context, const char* kind, const char* message));
    void* managed_from_object;
    int (*object_from_managed)(DLManagedTensorVersioned* managed, void** object);
    int (*view_of_object)(void* object, DLTensor* out);
    int (*current_stream)(std::int32_t device_type, std::int32_t device_id, void** stream);
  };

  bool is_tensor(PyObject* object) const noexcept {
    return Py_TYPE(object) == tensor_type || Py_TYPE(object) == parameter_type;
  }
  bool is_parameter(PyObject* object) const noexcept { return Py_TYPE(object) == parameter_type; }

  /// Returns a tensor of any class. Empty for an object that is not a strided tensor with a supported dtype and device.
  std::optional<TorchTensor> placed(PyObject* tensor) const;
  /// Returns the device of a storage. Throws unsupported for a device that onecopy does not support.
  Device device_of_storage(nb::handle storage) const;
  /// Makes torch initialise a device before it makes tensors on the device's memory. Throws unsupported if it cannot.
  void use(Device device) const;
  /// Returns torch's current device of this type, or 0 until torch has used devices of this type.
  std::int16_t current_ordinal(DeviceType type) const;
  /// Returns torch's current stream, or the default stream until torch has used devices of this type.
  Stream current_stream(Device device) const;
  /// Returns the current stream of the current CUDA device if it is being captured, or else the default stream.
  Stream captured_stream() const;
  /// Returns the tensor's offset in its storage, in elements.
  std::size_t offset(nb::handle tensor) const { return number(call(storage_offset_, tensor)); }

  /// Returns a tensor on foreign memory. Takes over `managed`, even if it throws.
  nb::object import(DLManagedTensorVersioned* managed) const;
  /// Returns whether import() supports the dtype.
  static bool can_import(DType dtype) noexcept;
  /// Returns a lazily negated tensor on the same memory. Throws unsupported if this torch lacks the name.
  nb::object neg_view(nb::handle tensor) const;
  /// Returns a tensor of any dtype on a storage. `offset` is in bytes.
  nb::object on_storage(nb::handle storage, const Layout& layout, std::size_t offset, Device device) const;
  /// Returns a new, uninitialised, row-major tensor on the CPU. Throws unsupported for a dtype that torch lacks.
  nb::object make(const Layout& layout) const;
  /// Returns make() for layouts that are used repeatedly. Making a tensor like the last one takes half of the time.
  nb::object make_again(const Layout& layout) const;
  nb::object as_parameter(nb::handle tensor, bool requires_grad) const;
  /// Returns a new tensor as a parameter or with requires_grad set, or the tensor itself.
  nb::object as_leaf(nb::object tensor, bool is_parameter, bool requires_grad) const;

  nb::object size(nb::handle tensor) const { return call(size_, tensor); }
  nb::object stride(nb::handle tensor) const { return call(stride_, tensor); }
  nb::object dtype(nb::handle tensor) const { return get(tensor, dtype_); }
  nb::object storage_of(nb::handle tensor) const { return call(untyped_storage_, tensor); }
  /// Returns the address of a storage. Throws unsupported for the storage of a tensor that is made of other tensors.
  std::byte* data(nb::handle storage) const;
  std::size_t nbytes(nb::handle storage) const { return number(call(nbytes_, storage)); }
  bool is_resizable(nb::handle storage) const { return call(resizable_, storage).is(nb::handle(Py_True)); }
  bool requires_grad(nb::handle tensor) const {
    return get(tensor, requires_grad_).is(nb::handle(Py_True));
  }
  bool is_conj(nb::handle tensor) const { return call(is_conj_, tensor).is(nb::handle(Py_True)); }
  bool is_neg(nb::handle tensor) const { return call(is_neg_, tensor).is(nb::handle(Py_True)); }
  /// Returns whether the memory of two storages can be exchanged (torch 2.12 and later).
  bool can_exchange() const noexcept { return !swap_.is_none(); }
  /// Exchanges the memory of two storages, for all tensors on them. REQUIRES: can_exchange(); same device and size.
  void exchange(nb::handle a, nb::handle b) const { swap_(a, b); }
  /// Returns false for tensors of inference mode, and for tensors with named dimensions.
  bool is_ordinary(nb::handle tensor) const;
  /// Returns whether only the caller and one tensor reference the storage; false if this torch cannot tell.
  bool is_alone(const nb::object& storage) const;
  /// Gives the tensor the storage, offset and layout of `twin`. The tensor keeps its identity, gradient, version and
  /// hooks. Returns false if torch refuses. REQUIRES: both are plain tensors, and is_ordinary().
  bool try_put_on_storage_of(nb::handle tensor, nb::handle twin) const noexcept;
  /// Returns whether the storage lies in shared memory that torch has made.
  bool is_shared_by_torch(nb::handle storage) const {
    return call(is_shared_, storage).is(nb::handle(Py_True));
  }
  /// Returns torch's own result, as share_by_descriptor() and share_by_name() do. All three throw unsupported if this
  /// torch lacks the name.
  nb::object shared_descriptor(nb::handle storage) const;
  nb::object share_by_descriptor(nb::handle storage) const;
  nb::object share_by_name(nb::handle storage) const;
  /// Returns a weak reference to the storage, for upgrade(). The caller must call free_weak() once.
  std::uintptr_t weak(nb::handle storage) const { return number(call(weak_ref_, storage)); }
  /// Returns the storage of a weak reference, or None if it was freed.
  nb::object upgrade(std::uintptr_t weak) const { return from_weak_(weak); }
  void free_weak(std::uintptr_t weak) const { free_weak_(weak); }

  /// Returns the exchange table, or null before torch 2.10.
  const ExchangeTable* exchange_table() const noexcept { return table_; }

  PyTypeObject* tensor_type;
  PyTypeObject* parameter_type;
  nb::object module;
  nb::object storage_type;  ///< torch.UntypedStorage

 private:
  /// The numbers of references to a storage that torch and Python count.
  struct References {
    std::size_t torch = 0;
    Py_ssize_t python = 0;
    bool operator==(const References&) const = default;
  };

  /// A tensor for empty_like().
  struct Pattern {
    Layout layout;
    nb::object tensor;
  };

  explicit TorchSymbols(nb::object torch);
  /// Returns the attribute, or None if it is missing. Remembers the first missing name.
  nb::object needed(nb::handle owner, const char* owner_name, const char* name);
  /// Returns torch's dtype. Throws unsupported if this torch lacks it.
  const nb::object& needed(DType dtype) const;
  void look_up_tensors();
  void look_up_storages();
  void measure_new();
  [[noreturn]] void refuse_absent(const std::string& name) const;
  nb::object call_if_there(const nb::object& method, const char* name, nb::handle self) const;
  References references(const nb::object& storage) const;
  /// Calls a method of one of torch's types, which was looked up once, on an object of the type.
  static nb::object call(const nb::object& method, nb::handle self) {
    PyObject* const arguments[] = {nullptr, self.ptr()};  // room in front, for bound methods
    return owned(
        PyObject_Vectorcall(method.ptr(), arguments + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
  }
  static nb::object get(nb::handle object, const nb::object& name) {
    return owned(PyObject_GetAttr(object.ptr(), name.ptr()));
  }
  static std::size_t number(const nb::object& value) {
    const std::size_t result = PyLong_AsSize_t(value.ptr());
    if (result == static_cast<std::size_t>(-1) && PyErr_Occurred()) throw nb::python_error();
    return result;
  }
  static const ExchangeTable* find_table(nb::handle tensor_type);
  std::optional<TorchTensor> placed_by_table(PyObject* tensor) const;
  std::optional<TorchTensor> placed_by_attributes(nb::handle tensor) const;
  /// Returns torch's module for devices of this type, or none.
  nb::object part_for(DeviceType type) const;
  /// Returns whether torch has used the device in this process. False in a new forked child, even if its parent has.
  bool has_used(DeviceType type) const;
  nb::object device(Device device) const;

  const ExchangeTable* table_;
  inline static const TorchSymbols* the_only_ = nullptr;  ///< set once torch is imported; used with the GIL
  static const ForkHook kForkHook;
  mutable std::atomic<std::uint32_t> used_{0};  ///< a bit for each DeviceType; cleared in a forked child
  std::array<nb::object, static_cast<std::size_t>(kLastDType) + 1>
      dtypes_;                                ///< by DType; none if torch lacks it
  mutable std::array<Pattern, 16> patterns_;  ///< by hash of the layout, for make_again()
  nb::object empty_, empty_like_, set_, strided_, make_subclass_, import_capsule_, from_weak_, free_weak_,
      is_shared_;
  nb::object size_, stride_, untyped_storage_, storage_offset_, is_conj_, is_neg_, data_ptr_, nbytes_,
      weak_ref_, resizable_, swap_;
  nb::object tensor_, is_inference_, neg_view_;
  nb::object descriptor_, share_descriptor_, share_name_;  ///< none if this torch lacks the name
  std::string absent_;                                     ///< empty if no needed name is missing
  nb::object use_count_, has_names_;                       ///< none if this torch lacks the name
  /// The storage of a tensor that no other code has seen.
  References of_new_;
  nb::object requires_grad_, dtype_, data_, cdata_;  ///< interned names
  nb::object no_elements_;                           ///< (0,)
  nb::object cpu_;
};

}  // namespace onecopy::python::torch
