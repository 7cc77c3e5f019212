// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "onecopy/core/bytes.h"
#include "os/fd.h"

namespace onecopy {

// Thread safety: all functions may be called concurrently. They go on after signals.

/// open(2) with O_CLOEXEC. Throws out_of_descriptors, system.
Fd open_file(const std::string& path, int flags, unsigned mode = 0600);
/// Fills `bytes` from `offset`. Throws bad_file if the file ends before.
void read_exactly(const Fd& fd, std::span<std::byte> bytes, std::uint64_t offset);
/// Writes at the file's position. Throws out_of_memory if the file system is full.
void write_all(const Fd& fd, ByteSpan bytes);
/// The path up to its last slash: "." without one, "/" for a name in the root.
std::string directory_of(const std::string& path);
/// All of a small file, such as those of /proc; empty if it cannot be read.
std::optional<std::string> try_read_text(const std::string& path);
/// Makes the directory with mode 0700, or checks that it is a directory (no link) of ours that no other user may
/// enter. If not, throws other_user, saying how to mend it.
void ensure_private_directory(const std::string& path);

}  // namespace onecopy
