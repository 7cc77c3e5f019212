// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/backend.h"

namespace onecopy::ascend {

/// The kind of new segments on this device. A virtual one (vNPU) has the calls for physical memory and does not do
/// it, which is found out once, by an allocation and its export. Throws what Driver::get() and UseDevice throw.
/// Thread safety: may be called concurrently.
SegmentKind kind_on(int ordinal);

}  // namespace onecopy::ascend
