// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/backend.h"

namespace onecopy {

/// A sparse sealed memfd. `owner` and `number` show in /proc/<pid>/maps.
std::unique_ptr<DeviceMemory> create_memfd_memory(std::size_t bytes, const std::string& owner,
                                                  std::uint32_t number);
/// Refuses a descriptor that is not a memfd of exactly that size, sealed against shrinking.
std::unique_ptr<DeviceMemory> open_memfd_memory(ExportedMemory memory, Access access);
/// Throws bad_handle if the descriptor is not a memfd of this size, sealed against shrinking. The size and the seal
/// together keep a borrower from SIGBUS.
void check_memfd(const Fd& fd, std::uint64_t size);

}  // namespace onecopy
