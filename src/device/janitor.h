// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace onecopy {

// Thread safety: all functions may be called concurrently, and from any number of processes.

/// Where segments of kind named_file live: ONECOPY_SHM_DIR, or /dev/shm. An absolute path.
std::string shared_directory();

struct CleanupReport {
  std::uint64_t files = 0;   ///< unlinked
  std::uint64_t bytes = 0;   ///< memory they held
  std::uint64_t in_use = 0;  ///< left alone: some process still has them mapped
};

/// Unlinks this user's onecopy files in shared_directory() that no process has mapped any more: what
/// killed processes left behind. An absent directory holds nothing.
CleanupReport remove_abandoned_files();

/// Tries again to unlink the files that this process released while another still had them: a forked child
/// has its parent's, and may end without a word. True while it is worth trying soon; true or not, later
/// calls try too.
bool remove_released_files() noexcept;

}  // namespace onecopy
