// SPDX-License-Identifier: Apache-2.0
#include "onecopy/share/pin.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <mutex>
#include <optional>

#include "binding/args.h"
#include "binding/copies.h"
#include "binding/device.h"
#include "binding/gil.h"
#include "binding/kept.h"
#include "binding/module.h"
#include "binding/pin.h"
#include "device/capture_gate.h"
#include "onecopy/core/error.h"
#include "os/log.h"
#include "torch/torch.h"

namespace onecopy::python {
namespace {

std::optional<Device> card_arg(nb::handle device) {
  if (device.is_none()) return {};
  return device_arg(device, "device");
}

/// Pins a batch of a DataLoader in place. Returns false if torch must copy it, and logs the first reason.
bool pin_batch(nb::handle tensor, int ordinal) {
  const auto found = torch::is_loaded() ? torch::find_shared(tensor.ptr()) : std::nullopt;
  if (!found) return false;
  if (is_pinned(*found)) return true;
  watch_captures();
  try {
    without_gil([&] { pin(*found, Device{DeviceType::cuda, static_cast<std::int16_t>(ordinal)}); });
    return true;
  } catch (const Error& error) {
    static std::atomic<bool> is_said{false};
    if (!is_said.exchange(true))
      log_warning(std::string("batches are copied into torch's pinned memory (logged once): ") +
                  error.what());
    return false;
  }
}

/// Returns a view of a tensor on a device, in the library of the tensor, without gradients; None for an object that is
/// not a plain tensor.
nb::object view_here(nb::handle object, nb::handle device) {
  constexpr std::uint32_t kOfGradients = torch::kRequiresGrad | torch::kParameter;
  const auto original = tensor_of(object);
  if (!original) return nb::none();
  const Device card = device_arg(device, "device");
  watch_captures();
  const Tensor view = without_gil([&] { return view_on(original->tensor, card); });
  return original->flags ? torch::open(view, *original->flags & ~kOfGradients) : nb::cast(view);
}

}  // namespace

void watch_captures() {
  static bool is_watched = false;  // under the GIL
  if (is_watched || !torch::is_loaded()) return;
  is_watched = nb::cast<bool>(nb::module_::import_("onecopy._captures").attr("watch")());
}

void pin_here(const Tensor& tensor, std::optional<Device> card) {
  if (is_pinned(tensor)) return;
  watch_captures();
  without_gil([&] { pin(tensor, card); });
}

void init_pin(nb::module_& m) {
  m.def(
      "_pin", [](const Tensor& tensor, nb::handle device) { pin_here(tensor, card_arg(device)); },
      nb::arg("tensor"), nb::arg("device") = nb::none(),
      nb::sig("def _pin(tensor: Tensor, device: typing.Any = None) -> None"));
  m.def("_view_on", &view_here, nb::arg("object").none(), nb::arg("device"),
        nb::sig("def _view_on(object: typing.Any, device: typing.Any) -> typing.Any"));
  m.def(
      "_unpin", [](const Tensor& tensor) { without_gil([&] { unpin(tensor); }); }, nb::arg("tensor"));
  m.def(
      "_is_pinned", [](const Tensor& tensor) { return is_pinned(tensor); }, nb::arg("tensor"));
  m.def("_pin_batch", &pin_batch, nb::arg("tensor"), nb::arg("ordinal"),
        nb::sig("def _pin_batch(tensor: typing.Any, ordinal: int) -> bool"));
  m.def("_begin_capture", [] { without_gil([] { CaptureGate::get().begin(); }); });
  m.def("_end_capture", [] { CaptureGate::get().end(); });
}

}  // namespace onecopy::python
