// SPDX-License-Identifier: Apache-2.0
#include "binding/open.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <span>
#include <string_view>

#include "array/numpy.h"
#include "binding/bundle.h"
#include "binding/device.h"
#include "binding/gil.h"
#include "binding/kept.h"
#include "binding/pin.h"
#include "device/pinned_ranges.h"
#include "onecopy/core/error.h"
#include "onecopy/share/share.h"

namespace onecopy::python {
namespace {

constexpr std::uint32_t kOnlyTorch = torch::kConj | torch::kNeg;

nb::object to_torch_with(const Tensor& tensor, std::uint32_t flags) {
  const nb::object module = import_package("torch", "a torch.Tensor",
                                           "; .numpy() and DLPack need none, and a onecopy.Tensor neither");
  if (PinnedRanges::any()) watch_captures();
  if (is_shareable(tensor)) return torch::open(tensor, flags | torch::kTorch);
  return module.attr("from_dlpack")(nb::cast(tensor));
}

nb::object open_handle(nb::handle handle, nb::handle device, nb::handle access, nb::handle framework,
                       bool pin) {
  drop_unneeded();
  const Handle from = handle_arg(handle, "handle");
  const Access how = access_arg(access, "access");
  const Framework as = framework_arg(framework, "framework");
  std::optional<Device> where;
  if (!device.is_none()) where = device_arg(device, "device");
  if (from.is_bundle()) {
    OpenBundle bundle(from, how, as, where);
    if (pin) bundle.pin();
    return nb::cast(std::move(bundle));
  }
  const Tensor opened = open_in_order(from, how, where);
  if (pin && is_on_host(opened)) pin_here(opened);
  return open_as(opened, as);
}

}  // namespace

nb::object to_torch(const Tensor& tensor) { return to_torch_with(tensor, torch::kTorch); }

nb::object open_as(const Tensor& tensor, Framework framework, std::uint32_t flags) {
  if (framework == Framework::torch) return to_torch_with(tensor, flags);
  if ((flags & kOnlyTorch) != 0)
    throw Error(
        ErrorCode::unsupported,
        fmt::format("{} was shared while lazily conjugated or negated, which only torch understands: "
                    "open it with framework=\"torch\", or share tensor.resolve_conj().resolve_neg()",
                    tensor.layout().str()));
  return framework == Framework::numpy ? to_numpy(tensor) : nb::cast(tensor);
}

Handle handle_arg(nb::handle value, const char* argument) {
  if (nb::isinstance<Handle>(value)) return nb::cast<const Handle&>(value);
  if (const auto text = utf8_of(value)) return Handle::from_text(*text);
  if (nb::isinstance<nb::str>(value))
    throw Error(ErrorCode::bad_handle,
                fmt::format("{}: {} is no handle's text", argument, short_repr(value)));
  if (PyBytes_Check(value.ptr()) || PyByteArray_Check(value.ptr()) || PyMemoryView_Check(value.ptr())) {
    const nb::object bytes = nb::steal(PyBytes_FromObject(value.ptr()));
    if (!bytes.is_valid()) throw nb::python_error();
    const std::string_view given{PyBytes_AsString(bytes.ptr()),
                                 static_cast<std::size_t>(PyBytes_Size(bytes.ptr()))};
    if (given.starts_with("onecopy:")) return Handle::from_text(given);  // as it came from a file or a pipe
    return Handle::from_bytes(std::as_bytes(std::span(given)));
  }
  raise_type_error(fmt::format("{} must be a onecopy.Handle, its bytes or its text, not {}", argument,
                               short_repr(value)));
}

void init_open(nb::module_& m) {
  m.def(
      "open", &open_handle, nb::arg("handle").none(), nb::arg("device") = nb::none(),
      nb::arg("access").none() = "readwrite", nb::arg("framework") = nb::none(), nb::arg("pin") = false,
      nb::sig(
          "def open(handle: Handle | bytes | bytearray | memoryview | str, device: typing.Any = None, "
          "access: typing.Literal['readwrite', 'read'] = 'readwrite', framework: "
          "typing.Literal['onecopy', 'torch', 'numpy'] | None = None, pin: bool = False) -> typing.Any"),
      "The tensor or bundle that a handle names, on its memory: nothing is copied.\n"
      "\n"
      "Args:\n"
      "    handle: a Handle, its ``to_bytes()``, or its text.\n"
      "    device: None for where the memory is, or the device to use it on: another device of this\n"
      "        process and of the same vendor reaches it where it is. Devices are found by their UUIDs,\n"
      "        under any CUDA_VISIBLE_DEVICES or ASCEND_RT_VISIBLE_DEVICES of both processes.\n"
      "    access: \"read\" maps the memory so that it cannot be written. numpy arrays are not\n"
      "        writeable then; torch has no such tensors, and writing to one is a segmentation\n"
      "        fault.\n"
      "    framework: None for a Tensor, which other libraries take by DLPack, such as\n"
      "        ``jax.numpy.from_dlpack()``; \"torch\" for a torch.Tensor, \"numpy\" for a numpy.ndarray.\n"
      "    pin: pins memory of the cpu for this process's cards, as ``pin()`` does; of a bundle all of "
      "it.\n"
      "\n"
      "Returns:\n"
      "    An array, or for a bundle's handle a Bundle whose arrays are of that framework.\n"
      "\n"
      "Raises:\n"
      "    StaleHandle: the memory has been freed.\n"
      "    OwnerDied: the process that allocated it is gone, and no other kept it.\n"
      "    BadHandle: these are no bytes of a handle.\n"
      "    ReadOnly: the handle lends its memory for reading only; use ``access=\"read\"``.\n"
      "    Unsupported: there is no way from that device to the memory; there is no driver for it; the\n"
      "        device is hidden from this process, or was used before this process was forked.\n"
      "    Timeout: its owner has not answered for ten seconds: it is stopped (SIGSTOP, a debugger).\n"
      "    PeerDied: its owner lives, and cannot be reached from this network namespace; or the process\n"
      "        that shared it died, or its device failed, before its stream was done.\n"
      "    OutOfMemory, OutOfDescriptors, OutOfMappings, OtherBoot, OtherUser, BadSecret,\n"
      "    VersionMismatch.\n"
      "\n"
      "The sharer's work in its current stream before ``share()`` comes before later work in this\n"
      "program's own current stream. The host does not wait, or else ``stats()[\"host_waits\"]`` counts\n"
      "it.");
}

}  // namespace onecopy::python
