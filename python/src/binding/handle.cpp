// SPDX-License-Identifier: Apache-2.0
#include "onecopy/share/handle.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include "array/dtype.h"
#include "binding/args.h"
#include "binding/bytes.h"
#include "binding/module.h"
#include "binding/open.h"
#include "onecopy/share/bundle.h"
#include "onecopy/share/share.h"

namespace onecopy::python {
namespace {

nb::bytes to_bytes(const Handle& handle) { return to_python(handle.to_bytes()); }

Handle from_bytes(nb::handle data) {
  if (nb::isinstance<Handle>(data) || nb::isinstance<nb::str>(data))
    raise_type_error(fmt::format("data must be bytes, not {}", short_repr(data)));
  return handle_arg(data, "data");
}

Handle from_text(nb::handle text) {
  if (!nb::isinstance<nb::str>(text))
    raise_type_error(fmt::format("text must be a str, not {}", short_repr(text)));
  return handle_arg(text, "text");
}

nb::object reduce_handle(const Handle& handle) {
  const bool keeps = static_cast<bool>(handle.block());
  return nb::make_tuple(nb::module_::import_("onecopy.pickling.tensors").attr("handle"),
                        nb::make_tuple(to_bytes(keeps ? hold(handle) : handle)));
}

/// Returns "a bundle of 3 tensors", or "a bundle" if this handle does not keep the bundle's memory.
std::string describe_bundle(const Handle& handle) {
  if (!handle.block()) return "a bundle";
  const std::size_t count = Bundle::open(handle).size();
  return fmt::format("a bundle of {} tensor{}", count, count == 1 ? "" : "s");
}

std::string to_repr(const Handle& handle) {
  const std::string what = handle.is_bundle()           ? describe_bundle(handle)
                           : handle.fields().is_queue() ? "a queue"
                                                        : handle.layout().str();
  return fmt::format("<onecopy.Handle of {}{}>", what, handle.fields().is_read_only() ? ", read-only" : "");
}

}  // namespace

void init_handles(nb::module_& m) {
  nb::class_<Handle>(
      m, "Handle", nb::is_final(), nb::is_weak_referenceable(),
      "A handle, with which another process opens a tensor or a bundle of tensors.\n"
      "\n"
      "A handle from ``share()`` keeps the memory alive; a handle read from bytes or text does not.\n"
      "Pickling a handle that keeps memory also holds the memory until the first open, for ten\n"
      "minutes at most.")
      .def("to_bytes", &to_bytes,
           "Returns the handle as about 150 bytes. The bytes do not keep the memory alive: keep the\n"
           "handle or the tensor until another process has opened them.")
      .def_static("from_bytes", &from_bytes, nb::arg("data").none(),
                  nb::sig("def from_bytes(data: bytes | bytearray | memoryview) -> Handle"),
                  "Returns the handle with these bytes, the result of ``to_bytes()``.\n"
                  "\n"
                  "Raises:\n"
                  "    BadHandle: the bytes are truncated, damaged or contradictory.\n"
                  "    VersionMismatch: another version of onecopy wrote the bytes.")
      .def_static("from_text", &from_text, nb::arg("text").none(),
                  nb::sig("def from_text(text: str) -> Handle"),
                  "Returns the handle with this text, the result of ``str()``. Raises as ``from_bytes()``.")
      .def("__str__", &Handle::to_text,
           "``\"onecopy:...\"``: safe on command lines, in environment variables and in URLs.")
      .def("__repr__", &to_repr)
      .def(
          "__eq__",
          [](const Handle& a, nb::handle b) {
            return nb::isinstance<Handle>(b) && nb::cast<const Handle&>(b).fields() == a.fields();
          },
          nb::arg("other").none(), nb::sig("def __eq__(self, other: object) -> bool"))
      .def("__hash__", [](const Handle& handle) { return nb::hash(nb::object(to_bytes(handle))); })
      .def("__reduce__", &reduce_handle, nb::sig("def __reduce__(self) -> tuple[typing.Any, ...]"))
      .def("__copy__", [](const Handle& handle) { return handle; })
      .def(
          "__deepcopy__", [](const Handle& handle, nb::handle) { return handle; }, nb::arg("memo").none(),
          nb::sig("def __deepcopy__(self, memo: object) -> Handle"))
      .def_prop_ro("is_bundle", &Handle::is_bundle, "Whether the handle opens a bundle.")
      .def_prop_ro(
          "device_type",
          [](const Handle& handle) { return std::string(name(handle.fields().device_type)); },
          "The type of the memory's device: ``\"cpu\"``, ``\"cuda\"`` or ``\"npu\"``.")
      .def_prop_ro(
          "shape", [](const Handle& handle) { return tuple_of(handle.layout().shape()); },
          nb::sig("def shape(self) -> tuple[int, ...]"), "The sizes of the tensor's dimensions.")
      .def_prop_ro(
          "dtype", [](const Handle& handle) { return dtype_object(handle.layout().dtype()); },
          nb::sig("def dtype(self) -> onecopy.dtypes.DType"), "The tensor's element type.")
      .def_prop_ro(
          "nbytes", [](const Handle& handle) { return handle.layout().nbytes(); },
          "The size of the tensor in bytes.")
      .def_prop_ro(
          "storage_nbytes", [](const Handle& handle) { return handle.fields().storage_size; },
          "The number of bytes that the opener can access: the whole storage that the tensor is a view "
          "of.");
}

}  // namespace onecopy::python
