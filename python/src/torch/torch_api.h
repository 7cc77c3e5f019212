// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "binding/module.h"
#include "device/backend.h"
#include "onecopy/core/dtype.h"
#include "onecopy/core/layout.h"
#include "onecopy/memory/dlpack.h"
#include "os/fork_hook.h"

namespace onecopy::python::torch {

/// For the storages of tensors that are made of other tensors: they have a size and no address.
[[noreturn]] void refuse_no_memory();

/// The parts of torch that onecopy uses, looked up once per interpreter, here and nowhere else (the half for Python
/// code is onecopy/multiprocessing/_torch_names.py). A name that this torch lacks is no error until it is needed.
/// Then a slower public way is taken, or require_names() and the function that needs it throw unsupported with the
/// name.
///
/// The quick way in and out is torch.Tensor.__dlpack_c_exchange_api__, the table of C functions of torch 2.10 and
/// later. Without it, the attributes of tensors and DLPack capsules give equal results, in more steps.
///
/// Never destroyed: storages may outlive the module. Thread safety: used with the GIL held.
class Api {
 public:
  /// None until torch has been imported completely.
  static const Api* get();

  /// Throws unsupported if a name is missing without which no tensor of torch's can be shared or opened.
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

  /// The elements of a tensor, and their device.
  struct Placement {
    Layout layout;
    Device device;
    std::byte* data;  ///< of the first element; of nothing in particular when there are no elements
  };
  /// Empty for objects that are no plain strided tensor of a known device with a dtype that onecopy has.
  std::optional<Placement> placed(PyObject* tensor) const;
  /// Throws unsupported for a storage on a device that we do not know.
  Device device_of_storage(nb::handle storage) const;
  /// Before torch makes tensors on memory of a device. Throws unsupported when this torch cannot.
  void use(Device device) const;
  /// The current device of that type; 0 until torch has used such devices.
  std::int16_t current_ordinal(DeviceType type) const;
  /// Until torch has used devices of that type all its work is in the default stream.
  Stream current_stream(Device device) const;
  /// Of CUDA: the current device's current stream while it is being captured; the default stream otherwise.
  Stream captured_stream() const;
  /// Elements from the start of the storage to the first of the tensor.
  std::size_t offset(nb::handle tensor) const { return number(call(storage_offset_, tensor)); }

  /// A tensor on foreign memory; `managed` is taken over in any case.
  nb::object import(DLManagedTensorVersioned* managed) const;
  /// Can import() make tensors of this dtype?
  static bool can_import(DType dtype) noexcept;
  /// A tensor on this one's memory, to be read negated. Throws unsupported if this torch lacks the name.
  nb::object neg_view(nb::handle tensor) const;
  /// A tensor of any dtype on a storage. `offset` counts bytes.
  nb::object on_storage(nb::handle storage, const Layout& layout, std::size_t offset, Device device) const;
  /// A new tensor of the CPU, row-major and not initialised. Throws unsupported for a dtype that torch does not have.
  nb::object make(const Layout& layout) const;
  /// make() for layouts that come again and again: a tensor like the one before takes torch half of the time.
  nb::object make_again(const Layout& layout) const;
  nb::object as_parameter(nb::handle tensor, bool requires_grad) const;
  /// A fresh tensor as a parameter, or one that requires a gradient, or itself.
  nb::object as_leaf(nb::object tensor, bool is_parameter, bool requires_grad) const;

  nb::object size(nb::handle tensor) const { return call(size_, tensor); }
  nb::object stride(nb::handle tensor) const { return call(stride_, tensor); }
  nb::object dtype(nb::handle tensor) const { return get(tensor, dtype_); }
  nb::object storage_of(nb::handle tensor) const { return call(untyped_storage_, tensor); }
  /// Throws unsupported for the storage of a tensor that is made of other tensors.
  std::byte* data(nb::handle storage) const;
  std::size_t nbytes(nb::handle storage) const { return number(call(nbytes_, storage)); }
  bool is_resizable(nb::handle storage) const { return call(resizable_, storage).is(nb::handle(Py_True)); }
  bool requires_grad(nb::handle tensor) const {
    return get(tensor, requires_grad_).is(nb::handle(Py_True));
  }
  bool is_conj(nb::handle tensor) const { return call(is_conj_, tensor).is(nb::handle(Py_True)); }
  bool is_neg(nb::handle tensor) const { return call(is_neg_, tensor).is(nb::handle(Py_True)); }
  /// Can the memory of two storages be exchanged (torch 2.12 and later)?
  bool can_exchange() const noexcept { return !swap_.is_none(); }
  /// All tensors on either storage follow. REQUIRES: can_exchange(); same device and size.
  void exchange(nb::handle a, nb::handle b) const { swap_(a, b); }
  /// False for tensors of inference mode, and for tensors whose dimensions have names.
  bool is_ordinary(nb::handle tensor) const;
  /// Is the caller's the only reference to this storage, but for one tensor's? Also false if this torch cannot tell.
  bool is_alone(const nb::object& storage) const;
  /// The tensor gets storage, place and layout of `twin`, and keeps identity, gradient, version and hooks. Returns
  /// false if torch refuses. REQUIRES: both are plain tensors, and is_ordinary().
  bool try_put_on_storage_of(nb::handle tensor, nb::handle twin) const noexcept;
  /// Is it in shared memory of torch's own making?
  bool is_shared_by_torch(nb::handle storage) const {
    return call(is_shared_, storage).is(nb::handle(Py_True));
  }
  /// torch's answers, as they are. Throws unsupported when this torch does not have the name.
  nb::object shared_descriptor(nb::handle storage) const;
  nb::object share_by_descriptor(nb::handle storage) const;
  nb::object share_by_name(nb::handle storage) const;
  /// A number that stands for the storage and does not keep its memory; to be given to upgrade() and,
  /// once, to free_weak().
  std::uintptr_t weak(nb::handle storage) const;
  /// The storage, or None when its memory is gone.
  nb::object upgrade(std::uintptr_t weak) const;
  void free_weak(std::uintptr_t weak) const;

  /// Null if torch has none (before 2.10).
  const ExchangeTable* exchange_table() const noexcept { return table_; }

  PyTypeObject* tensor_type;
  PyTypeObject* parameter_type;
  nb::object module;
  nb::object storage_type;  ///< torch.UntypedStorage

 private:
  /// Of a storage's: torch's and Python's.
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

  explicit Api(nb::object torch);
  /// None, and the first of them is remembered, when it is missing.
  nb::object needed(nb::handle owner, const char* owner_name, const char* name);
  void look_up_tensors();
  void look_up_storages();
  void measure_new();
  [[noreturn]] void refuse_absent(const std::string& name) const;
  nb::object call_if_there(const nb::object& method, const char* name, nb::handle self) const;
  References references(const nb::object& storage) const;
  /// A method of torch's types, looked up once, called on an object of that type.
  static nb::object call(const nb::object& method, nb::handle self) {
    PyObject* const arguments[] = {nullptr, self.ptr()};  // room in front, for bound methods
    PyObject* result =
        PyObject_Vectorcall(method.ptr(), arguments + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
    if (!result) throw nb::python_error();
    return nb::steal(result);
  }
  static nb::object get(nb::handle object, const nb::object& name) {
    PyObject* result = PyObject_GetAttr(object.ptr(), name.ptr());
    if (!result) throw nb::python_error();
    return nb::steal(result);
  }
  static std::size_t number(const nb::object& value) {
    const std::size_t result = PyLong_AsSize_t(value.ptr());
    if (result == static_cast<std::size_t>(-1) && PyErr_Occurred()) throw nb::python_error();
    return result;
  }
  static const ExchangeTable* find_table(nb::handle tensor_type);
  std::optional<Placement> placed_by_table(PyObject* tensor) const;
  std::optional<Placement> placed_by_attributes(nb::handle tensor) const;
  /// torch's module for devices of that type; none when there is none.
  nb::object part_for(DeviceType type) const;
  /// False in a forked child at first, also if its parent has used the device.
  bool has_used(DeviceType type) const;
  nb::object device(Device device) const;

  const ExchangeTable* table_;
  inline static const Api* the_only_ = nullptr;  ///< once torch is imported; of threads with the GIL
  static const ForkHook kForkHook;
  mutable std::atomic<std::uint32_t> used_{0};  ///< a bit for each DeviceType; not kept over a fork
  std::array<nb::object, static_cast<std::size_t>(kLastDType) + 1>
      dtypes_;                                ///< by DType; none: unknown to torch
  mutable std::array<Pattern, 16> patterns_;  ///< the last of its kind that make_again() made
  nb::object empty_, empty_like_, set_, strided_, make_subclass_, import_capsule_, from_weak_, free_weak_,
      is_shared_;
  nb::object size_, stride_, untyped_storage_, storage_offset_, is_conj_, is_neg_, data_ptr_, nbytes_,
      weak_ref_, resizable_, swap_;
  nb::object tensor_, is_inference_, neg_view_;
  nb::object descriptor_, share_descriptor_, share_name_;  ///< none: this torch has none
  std::string absent_;                                     ///< empty: nothing that is needed is missing
  nb::object use_count_, has_names_;                       ///< none: this torch does not say
  /// The storage of a tensor that no other code has seen.
  References of_new_;
  nb::object requires_grad_, dtype_, data_, cdata_;  ///< the words
  nb::object no_elements_;                           ///< (0,)
  nb::object cpu_;
};

}  // namespace onecopy::python::torch
