// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "onecopy/core/device.h"

/// What `onecopy doctor` asks a vendor's driver for directly: what frameworks use and onecopy does not make.
/// Thread safety: none. Nothing is given back before the process ends.
namespace onecopy::cli {

/// Memory of cudaMalloc on a device. Throws unsupported with the driver's number.
void* allocate_by_cuda(int ordinal, std::size_t bytes);

/// The handle of an event that other processes can open, recorded in the first device's default stream.
std::vector<std::uint8_t> record_shared_event(DeviceType type);
/// Opens it, and waits for it in the first device's default stream.
void wait_for_shared_event(DeviceType type, const std::vector<std::uint8_t>& handle);

}  // namespace onecopy::cli
