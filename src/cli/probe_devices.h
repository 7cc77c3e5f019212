// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "device/backend.h"
#include "probe.h"

namespace onecopy::cli {

/// A segment of the smallest size, with memory.
std::unique_ptr<DeviceMemory> new_memory(Device device, SegmentKind kind);
/// Of the kind that tensors on this device get.
std::unique_ptr<DeviceMemory> new_memory(Device device);

/// Captured graphs on CUDA devices.
Finding try_cuda_graphs();

}  // namespace onecopy::cli
