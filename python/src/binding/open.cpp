// SPDX-License-Identifier: Apache-2.0
#include "binding/open.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <span>
#include <string_view>

#include "array/numpy.h"
#include "binding/bundle.h"
#include "binding/device.h"
#include "binding/kept.h"
#include "binding/pin.h"
#include "core/throw_error.h"
#include "device/pinned_ranges.h"
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
  drain_decrefs();
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
    throw_error(ErrorCode::unsupported,
                "{} was shared while lazily conjugated or negated, which only torch understands: "
                "open it with framework=\"torch\", or share tensor.resolve_conj().resolve_neg()",
                tensor.layout().str());
  return framework == Framework::numpy ? to_numpy(tensor) : nb::cast(tensor);
}

Handle handle_arg(nb::handle value, const char* argument) {
  if (nb::isinstance<Handle>(value)) return nb::cast<const Handle&>(value);
  if (const auto text = utf8_of(value)) return Handle::from_text(*text);
  if (nb::isinstance<nb::str>(value))
    throw_error(ErrorCode::bad_handle, "{}: {} is not the text of a handle", argument, short_repr(value));
  if (PyBytes_Check(value.ptr()) || PyByteArray_Check(value.ptr()) || PyMemoryView_Check(value.ptr())) {
    const nb::bytes bytes(value);
    const std::string_view given{bytes.c_str(), bytes.size()};
    if (given.starts_with("onecopy:")) return Handle::from_text(given);  // as it came from a file or a pipe
    return Handle::from_bytes(std::as_bytes(std::span(given)));
  }
  raise_type_error(fmt::format("{} must be a onecopy.Handle, its bytes or its text, not {}", argument,
                               short_repr(value)));
}

namespace {

Tensor open_as_lent(nb::handle handle, nb::handle device) {
  drain_decrefs();
  const Handle from = handle_arg(handle, "handle");
  std::optional<Device> where;
  if (!device.is_none()) where = device_arg(device, "device");
  // On the host, a write to memory that is lent for reading would end the process: there the caller must ask for it.
  const bool reads = from.fields().is_read_only() && from.fields().device_type != DeviceType::cpu;
  return open_in_order(from, reads ? Access::read_only : Access::read_write, where);
}

}  // namespace

void init_open(nb::module_& m) {
  m.def("_open_as_lent", &open_as_lent, nb::arg("handle"), nb::arg("device") = nb::none(),
        nb::sig("def _open_as_lent(handle: Handle | bytes | str, device: object | None = None) -> Tensor"),
        "Opens a tensor for writing, or for reading if it is on a card and its handle allows no more.");
  m.def(
      "open", &open_handle, nb::arg("handle").none(), nb::arg("device") = nb::none(),
      nb::arg("access").none() = "readwrite", nb::arg("framework") = nb::none(), nb::arg("pin") = false,
      nb::sig(
          "def open(handle: Handle | bytes | bytearray | memoryview | str, device: typing.Any = None, "
          "access: typing.Literal['readwrite', 'read'] = 'readwrite', framework: "
          "typing.Literal['onecopy', 'torch', 'numpy'] | None = None, pin: bool = False) -> typing.Any"),
      "Opens the tensor or bundle of a handle. Nothing is copied.\n"
      "\n"
      ">>> weights = onecopy.open(text, framework=\"torch\")  # in any process of this user\n"
      ">>> weights[\"layer.0.weight\"]  # a torch.Tensor on the memory of the process that shared it\n"
      "\n"
      "Args:\n"
      "    handle: a Handle, its ``to_bytes()``, or its text.\n"
      "    device: the device to use the memory on; None for the memory's own device. Another device\n"
      "        of the same vendor accesses the memory in place. Devices are identified by their UUIDs,\n"
      "        so the processes may set CUDA_VISIBLE_DEVICES or ASCEND_RT_VISIBLE_DEVICES differently.\n"
      "    access: \"read\" maps the memory read-only. numpy arrays are not writeable then; torch has\n"
      "        no read-only tensors, and writing to one is a segmentation fault.\n"
      "    framework: None for a Tensor, which other libraries import by DLPack, e.g. with\n"
      "        ``jax.numpy.from_dlpack()``; \"torch\" for a torch.Tensor, \"numpy\" for a numpy.ndarray.\n"
      "    pin: pins memory of the cpu for this process's cards, as ``pin()`` does; of a bundle, all of\n"
      "        its memory.\n"
      "\n"
      "Returns:\n"
      "    An array of the framework, or a Bundle of such arrays for the handle of a bundle.\n"
      "\n"
      "Raises:\n"
      "    StaleHandle: the memory has been freed.\n"
      "    OwnerDied: the process that allocated the memory has ended, and no other process holds it.\n"
      "    BadHandle: the bytes or the text are not a handle.\n"
      "    ReadOnly: the handle allows reading only; use ``access=\"read\"``.\n"
      "    Unsupported: the device cannot access the memory, has no driver, is hidden from this\n"
      "        process, or was used before this process was forked.\n"
      "    Timeout: the owner has not answered for ten seconds; it may be stopped (SIGSTOP, a debugger).\n"
      "    PeerDied: the owner cannot be reached from this network namespace; or the process that\n"
      "        shared the memory has ended, or its device has failed, before its stream was done.\n"
      "    OutOfMemory, OutOfDescriptors, OutOfMappings, OtherBoot, OtherUser, BadSecret,\n"
      "    VersionMismatch.\n"
      "\n"
      "Work that the sharer queued in its current stream before ``share()`` runs before later work in\n"
      "this program's current stream. The host does not wait, or ``stats()[\"host_waits\"]`` counts it.");
}

}  // namespace onecopy::python
