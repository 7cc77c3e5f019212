// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "devices.h"

namespace onecopy::ascend {

/// Creates a segment by aclrtMalloc, which is exported by an IPC key, for chips and drivers without virtual memory. The
/// segment is *weak*: it ends with its process. Borrowers have to close a key before the owner may free the memory, but
/// the owner does not learn when they have. Exported memory is therefore kept for the next segment of its size.
std::unique_ptr<DeviceMemory> create_key_memory(int ordinal, std::size_t bytes);
/// Opens another process's segment for `ordinal`. The runtime cannot map it read-only: only onecopy's own copies refuse
/// to write.
std::unique_ptr<DeviceMemory> open_key_memory(int ordinal, const ExportedMemory& memory, Access access);

}  // namespace onecopy::ascend
