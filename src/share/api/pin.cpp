// SPDX-License-Identifier: Apache-2.0
#include "onecopy/share/pin.h"

#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "share/runtime/runtime.h"

namespace onecopy {

void pin(const Tensor& tensor, std::optional<Device> card) {
  Runtime::current().pinning().pin(tensor, card);
}

void unpin(const Tensor& tensor) { Runtime::current().pinning().unpin(tensor); }

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
