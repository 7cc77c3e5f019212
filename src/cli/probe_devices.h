// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "device/backend.h"
#include "probe.h"

namespace onecopy::cli {

/// Returns a segment of the smallest size, with memory.
std::unique_ptr<DeviceMemory> new_memory(Device device, SegmentKind kind);
/// Returns a segment of the kind that tensors on this device get.
std::unique_ptr<DeviceMemory> new_memory(Device device);

/// Tries captured graphs on CUDA devices.
Finding try_cuda_graphs();

}  // namespace onecopy::cli
