// SPDX-License-Identifier: Apache-2.0
#include "array/dlpack.h"

#include <fmt/format.h>

#include <utility>

#include "array/exports.h"
#include "binding/args.h"
#include "binding/device.h"
#include "core/throw_error.h"
#include "onecopy/memory/dlpack.h"
#include "onecopy/share/share.h"

namespace onecopy::python {
namespace {

constexpr const char* kOldName = "dltensor";
constexpr const char* kVersionedName = "dltensor_versioned";
constexpr std::uint64_t kDLCopied = 2;  // bit of flags

/// Destroys the memory of a capsule that no consumer has taken.
template <class Managed>
void drop(PyObject* capsule, const char* name) {
  if (PyCapsule_IsValid(capsule, name) == 0) return;  // taken
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
  managed->deleter(managed);
}

template <class Managed>
nb::object make_capsule(Managed* managed, const char* name, PyCapsule_Destructor destructor) {
  PyObject* const capsule = PyCapsule_New(managed, name, destructor);
  if (capsule) return nb::steal(capsule);
  managed->deleter(managed);
  throw nb::python_error();
}

template <class Managed>
Tensor take(nb::handle capsule, const char* name, const char* used) {
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), name));
  if (!managed || PyCapsule_SetName(capsule.ptr(), used) != 0) throw nb::python_error();
  return from_dlpack(managed);
}

Tensor from_capsule(nb::handle capsule, const char* argument) {
  try {
    if (PyCapsule_IsValid(capsule.ptr(), kVersionedName) != 0)
      return take<DLManagedTensorVersioned>(capsule, kVersionedName, "used_dltensor_versioned");
    if (PyCapsule_IsValid(capsule.ptr(), kOldName) != 0)
      return take<DLManagedTensor>(capsule, kOldName, "used_dltensor");
  } catch (const Error& error) {
    throw_error(error.code(), "{}: {}", argument, error.what());
  }
  raise_type_error(
      fmt::format("{}.__dlpack__() returned {}, which is not a DLPack capsule, or was used before",
                  argument, short_repr(capsule)));
}

/// Calls __dlpack__(). Libraries before DLPack 1 do not accept the keyword max_version.
nb::object call_dlpack(nb::handle object, Device device) {
  nb::dict keywords;
  if (device != kCpu) {  // its work comes before later work of our current stream
    const Stream stream = current_stream(device);
    keywords["stream"] = stream.native ? reinterpret_cast<std::uintptr_t>(stream.native) : 1;
  }
  const nb::object dlpack = object.attr("__dlpack__");
  nb::dict versioned;
  versioned.update(keywords);
  versioned["max_version"] = nb::make_tuple(1, 1);
  try {
    return dlpack(**versioned);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
  }
  return dlpack(**keywords);
}

/// Returns the device of an object; the cpu if the object does not name one.
Device device_of(nb::handle object, const char* argument) {
  const nb::object device = nb::getattr(object, "__dlpack_device__", nb::none());
  if (device.is_none()) return kCpu;
  const nb::object pair = device();
  if (!PyTuple_Check(pair.ptr()) || NB_TUPLE_GET_SIZE(pair.ptr()) != 2)
    raise_type_error(fmt::format("{}.__dlpack_device__() must return two ints", argument));
  const nb::object type = pair[0];
  const nb::object index = pair[1];
  const long number = PyLong_AsLong(type.ptr());  // enums as well
  const long at = PyLong_AsLong(index.ptr());
  if (PyErr_Occurred()) throw nb::python_error();
  try {
    return from_dl({static_cast<std::int32_t>(number), static_cast<std::int32_t>(at)});
  } catch (const Error& error) {
    throw_error(error.code(), "{}: {}", argument, error.what());
  }
}

}  // namespace

nb::object to_capsule(const Tensor& tensor, bool versioned, bool copied) {
  if (!versioned) {
    if (tensor.access() == Access::read_only)
      throw nb::buffer_error(
          "a tensor that was opened for reading only needs DLPack 1.0, which can say so; ask for "
          "max_version=(1, 0), or open it with access=\"readwrite\"");
    return make_capsule(to_dlpack(exported(tensor)), kOldName,
                        [](PyObject* capsule) { drop<DLManagedTensor>(capsule, kOldName); });
  }
  DLManagedTensorVersioned* managed = to_dlpack_versioned(exported(tensor));
  if (copied) managed->flags |= kDLCopied;
  return make_capsule(managed, kVersionedName,
                      [](PyObject* capsule) { drop<DLManagedTensorVersioned>(capsule, kVersionedName); });
}

Tensor from_dlpack_object(nb::handle object, const char* argument) {
  const nb::object capsule = call_dlpack(object, device_of(object, argument));
  Tensor tensor = from_capsule(capsule, argument);
  if (auto ours = find_exported(tensor.view())) return *std::move(ours);
  return tensor;
}

}  // namespace onecopy::python
