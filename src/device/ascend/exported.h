// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "device/backend.h"

namespace onecopy::ascend {

/// The data by which other processes open an Ascend segment, in ExportedMemory::blob. There are no descriptors.
struct ExportedKeys {
  Access access = Access::read_write;
  std::uint64_t bytes = 0;
  Uuid device{};                ///< the device that holds the memory
  std::uint64_t shareable = 0;  ///< the number of memory of kind ascend_vmm
  std::string key;              ///< the key of memory of kind ascend_key
};

Bytes encode(const ExportedKeys& exported);
/// Returns what a segment exports, without its kind and size.
ExportedMemory describe(const ExportedKeys& exported);
/// Decodes memory.blob. Throws bad_handle if the blob contradicts itself or the rest of `memory`.
ExportedKeys decode(const ExportedMemory& memory);

/// Checks that another process's export may be opened at `ordinal`: with this access, and over a path between the cards
/// if they differ. Returns this process's number of the owner's device. Throws read_only, unsupported.
int prepare_to_open(int ordinal, const ExportedKeys& exported, Access access);

}  // namespace onecopy::ascend
