// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/backend.h"

namespace onecopy::ascend {

/// Returns the kind of new segments on this device. A virtual device (vNPU) has the calls for physical memory, but they
/// fail; an allocation and its export find this out once. Throws what Driver::get() and UseDevice throw. Thread safety:
/// may be called concurrently.
SegmentKind kind_on(int ordinal);

}  // namespace onecopy::ascend
