// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "device/backend.h"

namespace onecopy {

/// The prefix of every segment file's name.
inline constexpr std::string_view kSegmentFilePrefix = "onecopy-";
/// Returns whether `name` is a segment file's: "onecopy-", the owner's 32 hexadecimal digits, "-", a number, and
/// perhaps "-" and 16 hexadecimal digits. The janitor touches no other file.
bool is_segment_file(std::string_view name) noexcept;

// Every process that has the file mapped holds a shared lock (flock) on it. A process that gets the exclusive lock
// knows that no other process has the file mapped, and may unlink it. A process that takes the lock afterwards finds
// that the name is gone, and gives up. The kernel drops the locks of dead processes, so only the name can be left
// behind, which the janitor removes.

/// Creates a segment in a file "onecopy-<owner>-<number>" in shared_directory(). The file gets its name only once it is
/// complete. If the name is taken, 16 random digits follow: other users may write to the directory, and must not be
/// able to take every name.
std::unique_ptr<DeviceMemory> create_named_file_memory(std::size_t bytes, const std::string& owner,
                                                       std::uint32_t number);
/// Opens the segment whose path is in `memory.blob`. Throws stale_handle if the file is gone or being removed.
std::unique_ptr<DeviceMemory> open_named_file_memory(const ExportedMemory& memory, Access access);

/// Unlinks `path` unless a process has it mapped. Returns the bytes it held, or -1 if it is in use, gone, or owned by
/// another user.
long long unlink_if_unused(const std::string& path) noexcept;

/// Unlinks `path` now, or when remove_released_files() finds it unused.
void unlink_once_unused(std::string path) noexcept;

}  // namespace onecopy
