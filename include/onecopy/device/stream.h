// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "onecopy/core/api.h"

ONECOPY_API_BEGIN
namespace onecopy {

/// A stream of a device, by the vendor's own handle. Null is the device's default stream.
struct Stream {
  void* native = nullptr;
};

}  // namespace onecopy
ONECOPY_API_END
