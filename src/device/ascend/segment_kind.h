// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/backend.h"

namespace onecopy::ascend {

/// The kind of new segments on this device. A virtual device (vNPU) has the calls for physical memory, and they fail.
/// That is found out once, by an allocation and its export. Throws as Driver::get() and UseDevice do. Thread safety:
/// may be called concurrently.
SegmentKind kind_on(int ordinal);

}  // namespace onecopy::ascend
