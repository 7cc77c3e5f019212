// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "device/backend.h"
#include "probe.h"

namespace onecopy::cli {

/// Returns whether this build has the backend of a type of device, see ONECOPY_ASCEND.
bool is_built(DeviceType type);

/// Returns a segment of the smallest size, with memory.
std::unique_ptr<DeviceMemory> new_memory(Device device, SegmentKind kind);
/// Returns a segment of the kind that tensors on this device get.
std::unique_ptr<DeviceMemory> new_memory(Device device);

using MakeFinding = Finding (*)(std::string detail, std::string advice);
/// Tries each device of the vendor. `attempt` returns the detail about a device that works, and throws an Error about
/// one that does not; the finding is then `otherwise`.
Finding try_each(DeviceType type, MakeFinding otherwise, const char* advice,
                 const std::function<std::string(Device)>& attempt);

/// Tries captured graphs on CUDA devices.
Finding try_cuda_graphs();

}  // namespace onecopy::cli
