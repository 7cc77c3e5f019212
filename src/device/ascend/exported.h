// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "acl_api.h"
#include "device/backend.h"

namespace onecopy::ascend {

/// The name of an Ascend segment for other processes, in ExportedMemory::blob. There are no descriptors.
struct ExportedKeys {
  Access access = Access::read_write;
  std::uint64_t bytes = 0;
  Uuid device{};                ///< whose memory it is
  std::uint64_t shareable = 0;  ///< of kind ascend_vmm
  std::string key;              ///< of kind ascend_key
};

Bytes encode(const ExportedKeys& exported);
/// Throws bad_handle if the blob contradicts itself or the rest of `memory`.
ExportedKeys decode(const ExportedMemory& memory);

/// The driver's number of this process. In a container it differs from getpid().
std::int32_t own_number();
/// Lets a process open the memory. The runtime is asked each time: numbers of memory and of processes come again.
/// Throws owner_died in a process that has no Ascend memory open, unsupported if the memory's owner is gone.
void admit(const ExportedMemory& memory, std::int32_t process);

/// Checks that another process's export may be opened at `ordinal`: the access it was lent with, and a path between
/// the cards if they differ. Returns the owner's device by our number. Throws read_only, unsupported.
int prepare_to_open(int ordinal, const ExportedKeys& exported, Access access);

}  // namespace onecopy::ascend
