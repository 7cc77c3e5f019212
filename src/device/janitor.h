// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace onecopy {

// Thread safety: all functions may be called concurrently, and from any number of processes.

/// Returns the absolute path of the directory of segments of kind named_file, which is ONECOPY_SHM_DIR or /dev/shm. Throws
/// invalid_argument if that is a relative path.
std::string shared_directory();

/// The result of a clean-up.
struct CleanupReport {
  std::uint64_t files = 0;   ///< unlinked
  std::uint64_t bytes = 0;   ///< memory that the unlinked files held
  std::uint64_t in_use = 0;  ///< left alone: a process still has them mapped
};

/// Unlinks this user's onecopy files in shared_directory() that no process has mapped, because killed processes have
/// left them. Does nothing if the directory is absent.
CleanupReport remove_abandoned_files();

/// Retries to unlink files that this process released while another process had them mapped. A forked child has its
/// parent's files mapped, and may end without notice. Returns true while an early retry is worthwhile; later calls
/// retry in any case.
bool remove_released_files() noexcept;
/// A callback for a released file that is in use elsewhere, so that remove_released_files() gets called. The callback
/// must not throw.
inline std::function<void()> on_file_left;

}  // namespace onecopy
