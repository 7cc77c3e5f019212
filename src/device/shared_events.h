// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

/// What `onecopy doctor` asks a vendor's driver for directly: what frameworks use and onecopy does not make. All
/// throw unsupported with the driver's number. Nothing is given back before the process ends.
/// Thread safety: none.
namespace onecopy {

/// The handle of an event that other processes can open.
using SharedEvent = std::vector<std::uint8_t>;

/// Memory of cudaMalloc on a device.
void* allocate_by_cuda(int ordinal, std::size_t bytes);

/// An event recorded in the first device's default stream.
SharedEvent record_cuda_event();
SharedEvent record_ascend_event();
/// Opens it, and waits for it in the first device's default stream. Throws invalid_argument for what is no handle.
void wait_for_cuda_event(const SharedEvent& handle);
void wait_for_ascend_event(const SharedEvent& handle);

}  // namespace onecopy
