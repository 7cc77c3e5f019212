// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace onecopy {

/// A stream of a device, by the vendor's own handle. Null is the device's default stream.
struct Stream {
  void* native = nullptr;
};

}  // namespace onecopy
