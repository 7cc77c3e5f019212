// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "state.h"

// All of these want state().mutex held.
namespace sim {

/// Null when the device's memory is used up.
std::shared_ptr<Memory> allocate(int device, std::size_t size, bool exportable);
/// Addresses without access; 0 when there are none.
CUdeviceptr reserve_addresses(std::size_t size, std::size_t alignment);
void free_addresses(CUdeviceptr at, std::size_t size);
Range& add_range(CUdeviceptr base, std::size_t size, RangeKind kind, std::shared_ptr<Memory> memory,
                 int device);

}  // namespace sim
