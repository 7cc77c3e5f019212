// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "devices.h"

namespace onecopy::cuda {

/// A segment of ours: one physical allocation, made by commit(), in an address range of just its size.
/// It leaves as a POSIX descriptor, and outlives this process wherever that is held.
std::unique_ptr<DeviceMemory> create_vmm_memory(int ordinal, std::size_t bytes);
/// A new descriptor of the memory, which a program that is started meanwhile does not inherit.
CUresult try_export(const Driver& driver, CUmemGenericAllocationHandle memory, Fd& exported);
/// Maps all chunks of another process's segment, memory of the device `home`, side by side for the device `user`.
std::unique_ptr<DeviceMemory> open_vmm_memory(int home, ExportedMemory memory, Access access, int user);

}  // namespace onecopy::cuda
