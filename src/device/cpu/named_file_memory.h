// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "device/backend.h"

namespace onecopy {

/// Every segment file's name starts with this.
inline constexpr std::string_view kSegmentFilePrefix = "onecopy-";
/// Is it a name that a process gives: "onecopy-", its own of 32 hexadecimal digits, "-", a number, and perhaps "-" and
/// 16 hexadecimal digits? The janitor touches no other file.
bool is_segment_file(std::string_view name) noexcept;

// Every process that has the file mapped holds a shared lock (flock) on it. A process that gets the exclusive lock
// knows that none has it mapped, and may unlink it. A process that locks afterwards finds no name and gives up. The
// kernel drops the locks of dead processes, so only the name can be left behind, for the janitor.

/// A file "onecopy-<owner>-<number>" in shared_directory(), which gets its name only once it is whole. If that name
/// is taken, 16 random digits follow: other users may write there, and must not be able to take all our names.
std::unique_ptr<DeviceMemory> create_named_file_memory(std::size_t bytes, const std::string& owner,
                                                       std::uint32_t number);
/// `memory.blob` is the path. Throws stale_handle if the file is gone or going.
std::unique_ptr<DeviceMemory> open_named_file_memory(const ExportedMemory& memory, Access access);

/// Unlinks `path` unless a process has it mapped. Returns the bytes it held, or -1 if it is in use, gone, or not
/// ours.
long long unlink_if_unused(const std::string& path) noexcept;

/// Unlinks `path` now, or when remove_released_files() finds it unused.
void unlink_once_unused(std::string path) noexcept;

}  // namespace onecopy
