// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "os/fd.h"

namespace onecopy {

// F_SEAL_* of <fcntl.h>; a seal cannot be taken off again.
inline constexpr int kSealShrink = 2;
inline constexpr int kSealGrow = 4;
inline constexpr int kSealWrite = 8;
/// New mappings and write() are read-only from here on; existing writable mappings stay.
inline constexpr int kSealFutureWrite = 16;

/// Anonymous shared memory without a name to leak: `size` bytes, sparse. It is sealed against shrinking and growing,
/// so that no holder can make others fault. `name` is for /proc/<pid>/maps only. Throws out_of_descriptors,
/// out_of_memory.
Fd create_memfd(const std::string& name, std::size_t size);

/// Throws system if the file cannot be sealed (it is not a memfd, or is sealed against sealing).
void add_seals(const Fd& fd, int seals);
/// The kSeal* bits set on the file. Throws invalid_argument for files that know no seals.
int seals_of(const Fd& fd);

/// Another open file for the same memory that cannot be mapped or written read-write.
Fd reopen_read_only(const Fd& fd);

std::uint64_t file_size(const Fd& fd);

}  // namespace onecopy
