// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/backend.h"

namespace onecopy::cuda {

/// The framework's allocation that [at, at + bytes) lies in: one made by cudaMalloc, or a row of neighbouring
/// mappings, as of an expandable segment.
ForeignMemory find_foreign_memory(const void* at, std::size_t bytes);
/// See Backend::is_still().
bool is_still(const ForeignMemory& memory, const void* at) noexcept;
/// Exported by a legacy handle (and *weak* then: gone with its process), or by a descriptor for each mapping, made on
/// demand.
std::unique_ptr<DeviceMemory> adopt_foreign_memory(const ForeignMemory& memory);
/// Another process's allocation on the device `home`, by its legacy handle, for the device `user`. The driver knows no
/// read-only form of it.
std::unique_ptr<DeviceMemory> open_legacy_memory(int home, const ExportedMemory& memory, Access access,
                                                 int user);

}  // namespace onecopy::cuda
