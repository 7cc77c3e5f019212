// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/backend.h"

namespace onecopy {

/// Creates a segment in a sparse sealed memfd. `owner` and `number` appear in /proc/<pid>/maps.
std::unique_ptr<DeviceMemory> create_memfd_memory(std::size_t bytes, const std::string& owner,
                                                  std::uint32_t number);
/// Opens a segment. Throws if check_memfd() does, or if the description contradicts itself.
std::unique_ptr<DeviceMemory> open_memfd_memory(ExportedMemory memory, Access access);
/// Throws bad_handle if the descriptor is not a memfd of this size that is sealed against shrinking. The size and the
/// seal together protect a borrower from SIGBUS.
void check_memfd(const Fd& fd, std::uint64_t size);

}  // namespace onecopy
