// SPDX-License-Identifier: Apache-2.0
#include "onecopy/share/pin.h"

#include <nanobind/stl/string.h>

#include <atomic>
#include <functional>
#include <utility>

#include "binding/args.h"
#include "binding/device.h"
#include "binding/gil.h"
#include "binding/module.h"
#include "binding/pin.h"
#include "device/capture_gate.h"
#include "onecopy/core/error.h"
#include "os/log.h"
#include "torch/torch_api.h"
#include "value/leaf.h"
#include "value/walk.h"

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

/// Calls a function with the memory of each tensor of a value: for a tensor of torch, the block that it lies in. Passes
/// over tensors on devices, unless one is the whole value.
class EachMemory final : public Visitor {
 public:
  explicit EachMemory(std::function<void(const Tensor&)> use)
      : Visitor(Makes::nothing), use_(std::move(use)) {}

  void take(std::span<Item> items, const Path& path) override {
    for (const Item& item : items) {
      const nb::handle object = item.object;
      const bool is_of_torch = torch::is_any_tensor(object.ptr());
      const auto device = is_of_torch ? torch::device_of(object) : kCpu;
      if (device != kCpu && !path.is_whole()) continue;
      if (!device) refuse(object, path.place(item));
      const auto memory =
          is_of_torch ? block_of_torch(object, path.place(item)) : memory_of(object, path.place(item));
      if (!is_on_host(memory) && !path.is_whole()) continue;
      use_(memory);
      ++found_;
    }
  }
  nb::object tensors_of(nb::handle module, const std::string&) override {
    return tensors_of_module(module);
  }
  /// Walks over the value. Returns the number of tensors.
  std::size_t found_in(nb::handle value) {
    walk(value, *this, "value");
    return found_;
  }

 private:
  static Tensor block_of_torch(nb::handle tensor, const std::string& place) {
    try {
      const nb::object storage = torch::TorchSymbols::require().storage_of(tensor);
      if (torch::is_of_version(storage))
        throw Error(ErrorCode::invalid_argument,
                    place + " is memory of the store: open a KV pool with pin=True, or pin a copy");
      return torch::share_block_of(storage.ptr()).first;
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_RuntimeError) && !error.matches(PyExc_ValueError)) throw;
    }
    refuse(tensor, place);
  }
  static Tensor memory_of(nb::handle object, const std::string& place) {
    const Source array = array_of(object, place);
    if (array.ours()) return *array.ours();
    if (array.device() != kCpu || as_onecopy_tensor(object.ptr())) return array.in_place();
    refuse_foreign(place);
  }

  const std::function<void(const Tensor&)> use_;
  std::size_t found_ = 0;
};

}  // namespace

void watch_captures() {
  static bool is_watched = false;  // under the GIL
  if (is_watched || !torch::is_loaded()) return;
  is_watched = nb::cast<bool>(nb::module_::import_("onecopy.device.captures").attr("watch")());
}

void pin_here(const Tensor& tensor, std::optional<Device> card) {
  if (is_pinned(tensor)) return;
  watch_captures();
  without_gil([&] { pin(tensor, card); });
}

void init_pin(nb::module_& m) {
  m.def(
      "_pin",
      [](nb::handle value, nb::handle device) {
        const std::optional<Device> card = card_arg(device);
        return EachMemory([&](const Tensor& memory) { pin_here(memory, card); }).found_in(value);
      },
      nb::arg("value").none(), nb::arg("device").none(),
      nb::sig("def _pin(value: typing.Any, device: typing.Any) -> int"));
  m.def(
      "_unpin",
      [](nb::handle value) {
        EachMemory([](const Tensor& memory) { without_gil([&] { unpin(memory); }); }).found_in(value);
      },
      nb::arg("value").none(), nb::sig("def _unpin(value: typing.Any) -> None"));
  m.def(
      "_is_pinned",
      [](nb::handle value) {
        bool are_all = true;
        const auto found = EachMemory([&](const Tensor& memory) {
                             are_all = are_all && is_pinned(memory);
                           }).found_in(value);
        return found != 0 && are_all;
      },
      nb::arg("value").none(), nb::sig("def _is_pinned(value: typing.Any) -> bool"));
  m.def("_pin_batch", &pin_batch, nb::arg("tensor"), nb::arg("ordinal"),
        nb::sig("def _pin_batch(tensor: typing.Any, ordinal: int) -> bool"));
  m.def("_begin_capture", [] { without_gil([] { CaptureGate::get().begin(); }); });
  m.def("_end_capture", [] { CaptureGate::get().end(); });
}

}  // namespace onecopy::python
