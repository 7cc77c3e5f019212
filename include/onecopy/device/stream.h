// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace onecopy {

/// A queue of work on a device, by the vendor's own handle. None is the device's default stream.
struct Stream {
  void* native = nullptr;
};

}  // namespace onecopy
