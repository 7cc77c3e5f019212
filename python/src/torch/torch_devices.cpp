// SPDX-License-Identifier: Apache-2.0
// The devices and streams that torch uses.
#include <nanobind/stl/string.h>

#include <string>

#include "device/backend.h"
#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "torch/torch_api.h"
#include "torch/torch_storages.h"

namespace onecopy::python::torch {

constexpr std::int16_t kCurrentDevice = -1;  // for torch

/// Forgets in a forked child which devices torch has used: torch refuses to use them there.
const ForkHook TorchSymbols::kForkHook{ForkRank::leaves, {.in_child = [] {
                                         if (const TorchSymbols* api = the_only_) api->used_ = 0;
                                       }}};

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

std::int16_t current_ordinal(DeviceType type) {
  const TorchSymbols* torch = TorchSymbols::get();
  return torch ? torch->current_ordinal(type) : std::int16_t{0};
}

Stream current_stream(Device device) {
  const TorchSymbols* torch = TorchSymbols::get();
  return torch ? torch->current_stream(device) : Stream{};
}

Stream captured_stream() {
  const TorchSymbols* torch = TorchSymbols::get();
  return torch ? torch->captured_stream() : Stream{};
}

bool record_stream(PyObject* tensor, Stream stream) {
  const TorchSymbols& torch = TorchSymbols::require();
  const nb::object storage = torch.storage_of(tensor);
  const std::byte* begin = torch.data(storage);
  const auto bytes = storages().block_at(torch, begin);
  return bytes && storages().record_stream(begin, stream, onecopy::record_stream(*bytes, stream));
}

}  // namespace onecopy::python::torch
