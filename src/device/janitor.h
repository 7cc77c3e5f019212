// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace onecopy {

// Thread safety: all functions may be called concurrently, and from any number of processes.

/// Where segments of kind named_file live: ONECOPY_SHM_DIR, or /dev/shm. An absolute path.
std::string shared_directory();

/// The result of one clean-up.
struct CleanupReport {
  std::uint64_t files = 0;   ///< unlinked
  std::uint64_t bytes = 0;   ///< memory they held
  std::uint64_t in_use = 0;  ///< left alone: a process still has them mapped
};

/// Unlinks this user's onecopy files in shared_directory() that no process has mapped any more: killed processes have
/// left them. An absent directory holds nothing.
CleanupReport remove_abandoned_files();

/// Tries again to unlink files that this process released while another still had them. A forked child has its
/// parent's files, and may end without notice. Returns true while it is worth trying soon; later calls try in any
/// case.
bool remove_released_files() noexcept;
/// Called when a released file is in use elsewhere, so that remove_released_files() has something to do. Must not
/// throw.
inline std::function<void()> on_file_left;

}  // namespace onecopy
