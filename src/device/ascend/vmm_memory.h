// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "devices.h"

namespace onecopy::ascend {

/// A segment of ours: one physical allocation, made by commit(), in an address range of just its size. It leaves
/// as a 64-bit number, lives as long as any process has it open, and can be opened by whom it was lent to.
std::unique_ptr<DeviceMemory> create_vmm_memory(int ordinal, std::size_t bytes);
/// Another process's segment, or one of this process, seen from `ordinal`.
std::unique_ptr<DeviceMemory> open_vmm_memory(int ordinal, const ExportedMemory& memory, Access access);

/// The physical memory that segments are made of.
aclrtPhysicalMemProp memory_on(int ordinal) noexcept;

}  // namespace onecopy::ascend
