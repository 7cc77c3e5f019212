// SPDX-License-Identifier: Apache-2.0
#include "onecopy/share/pin.h"

#include "device/backend.h"
#include "device/pinned_ranges.h"
#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "share/runtime/runtime.h"

namespace onecopy {

void pin(const Tensor& tensor, std::optional<Device> card) {
  Runtime::current().pinning().pin(tensor, card);
}

void unpin(const Tensor& tensor) { Runtime::current().pinning().unpin(tensor); }

Tensor view_on(const Tensor& tensor, Device device) {
  if (device == kCpu)
    throw Error(ErrorCode::invalid_argument, "a view is for a card: name one, such as cuda:0");
  identity_of(device);  // throws if it is not there
  Runtime& runtime = Runtime::current();
  runtime.pinning().pin_for_views(tensor, device);
  runtime.streams().note_use(device);
  backend(device.type).require_in_place(device.index, tensor.data());
  return {tensor.block(), tensor.data(), tensor.layout(), device, tensor.access()};
}

bool is_view(const Tensor& tensor) noexcept {
  return PinnedRanges::is_view(tensor.device(), tensor.data());
}

bool is_pinned(const Tensor& tensor) { return Pinning::is_pinned(tensor); }

Tensor empty(const Layout& layout, const AllocateOptions& options) {
  if (options.pinned && options.device != kCpu)
    throw Error(ErrorCode::invalid_argument,
                "memory of " + options.device.str() + " is not pinned: leave out the device, or pinned");
  Tensor made = empty(layout, options.device);
  if (options.pinned) pin(made);
  return made;
}

}  // namespace onecopy
