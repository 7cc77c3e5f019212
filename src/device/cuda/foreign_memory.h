// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/backend.h"

namespace onecopy::cuda {

/// Returns the framework's allocation that contains [at, at + bytes): memory of cudaMalloc, or a row of adjacent
/// mappings, as in an expandable segment.
ForeignMemory find_foreign_memory(const void* at, std::size_t bytes);
/// Implements Backend::is_still().
bool is_still(const ForeignMemory& memory, const void* at) noexcept;
/// Adopts an allocation as a segment. The segment is exported by a descriptor for each mapping, created on demand, or
/// by a legacy handle; a segment with a legacy handle is *weak*: it ends with its process.
std::unique_ptr<DeviceMemory> adopt_foreign_memory(const ForeignMemory& memory);
/// Opens another process's allocation on the device `home`, by its legacy handle, for the device `user`. The driver
/// cannot map this memory read-only.
std::unique_ptr<DeviceMemory> open_legacy_memory(int home, const ExportedMemory& memory, Access access,
                                                 int user);

}  // namespace onecopy::cuda
