// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "devices.h"

namespace onecopy::ascend {

/// A segment made by aclrtMalloc and exported by an IPC key, for chips and drivers without virtual memory. It is
/// *weak*: gone with its process. Borrowers have to close a key before its owner may free the memory, and the owner
/// is not told when they have. Therefore memory that was ever exported is kept for the next segment of its size.
std::unique_ptr<DeviceMemory> create_key_memory(int ordinal, std::size_t bytes);
/// Another process's segment, seen from `ordinal`. The runtime knows no read-only form of it: only our own copies
/// refuse to write.
std::unique_ptr<DeviceMemory> open_key_memory(int ordinal, const ExportedMemory& memory, Access access);

}  // namespace onecopy::ascend
