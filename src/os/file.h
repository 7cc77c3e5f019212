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

// Thread safety: all functions may be called concurrently. A function that a signal interrupts resumes.

/// Opens a file with O_CLOEXEC. Throws out_of_descriptors, system.
Fd open_file(const std::string& path, int flags, unsigned mode = 0600);
/// Fills `bytes` from `offset`. Throws bad_file if the file ends earlier.
void read_exactly(const Fd& fd, std::span<std::byte> bytes, std::uint64_t offset);
/// Writes at the file's position. Throws out_of_memory if the file system is full.
void write_all(const Fd& fd, ByteSpan bytes);
/// Returns the path up to its last slash: "." without a slash, "/" for a name in the root.
std::string directory_of(const std::string& path);
/// Returns the directory that a variable of the environment names; empty if the variable is not set. Throws invalid_argument
/// for a relative path, which would name another directory in a process that works elsewhere.
std::string directory_in(const char* variable);
/// Returns the content of a small file, e.g. of /proc; empty if it cannot be read.
std::optional<std::string> try_read_text(const std::string& path);
/// Creates the directory with mode 0700, or checks that it is a directory (not a link) of this user that other users
/// cannot enter. Throws other_user with the remedy.
void ensure_private_directory(const std::string& path);

}  // namespace onecopy
