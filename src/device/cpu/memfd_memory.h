// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "onecopy/device/backend.h"

namespace onecopy {

/// A sparse sealed memfd. `owner` and `number` show in /proc/<pid>/maps.
std::unique_ptr<DeviceMemory> create_memfd_memory(std::size_t bytes, const std::string& owner,
                                                  std::uint32_t number);
/// Refuses a descriptor that is not a memfd of exactly that size, sealed against shrinking.
std::unique_ptr<DeviceMemory> open_memfd_memory(ExportedMemory memory, Access access);

}  // namespace onecopy
