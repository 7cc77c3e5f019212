// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "os/fd.h"

namespace onecopy {

// The F_SEAL_* of <fcntl.h>. A seal cannot be removed.
inline constexpr int kSealShrink = 2;
inline constexpr int kSealGrow = 4;
inline constexpr int kSealWrite = 8;
/// Makes new mappings and write() read-only; existing writable mappings stay.
inline constexpr int kSealFutureWrite = 16;

/// Creates anonymous shared memory of `size` bytes, sparse, without a name that could leak. The memory is sealed
/// against shrinking and growing, so that no holder can make others fault. `name` appears only in /proc/<pid>/maps.
/// Throws out_of_descriptors, out_of_memory.
Fd create_memfd(const std::string& name, std::size_t size);

/// Adds seals. Throws system if the file cannot be sealed (it is not a memfd, or is sealed against sealing).
void add_seals(const Fd& fd, int seals);
/// Does what add_seals() does, or returns false if the memory is to be sealed with kSealWrite while a process has it mapped
/// for writing or a device uses its pages.
bool try_add_seals(const Fd& fd, int seals);
/// Returns the kSeal* bits that are set on the file. Throws invalid_argument for files without seals.
int seals_of(const Fd& fd);

/// Opens the same memory again, so that it cannot be mapped for writing or written through the result.
Fd reopen_read_only(const Fd& fd);

std::uint64_t file_size(const Fd& fd);

}  // namespace onecopy
