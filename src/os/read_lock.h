// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>

#include "os/fd.h"

namespace onecopy {

// Thread safety: all functions may be called concurrently.

/// Locks a file for reading. The lock belongs to the open file, not to the process: the lock travels with the
/// descriptor through a socket, and lasts until the last descriptor and the last mapping of this open file are gone, in
/// any process. So the kernel ends the lock of a killed process, and a lock whose descriptors are closed shows that a
/// process still maps the file. Throws system.
void lock_for_reading(const Fd& file);

/// Returns false if no open file other than this one is locked for reading. Returns true if this cannot be decided.
bool may_be_read(const Fd& file) noexcept;

/// The read locks of all open files at one moment, for a listing. Thread safety: const members may be called
/// concurrently.
class ReadLocks {
 public:
  /// Reads /proc/locks.
  ReadLocks();

  /// Returns the number of open files of this file that are locked for reading. If the kernel lists no locks, returns 1
  /// where may_be_read() is true.
  unsigned count(const Fd& file) const;

 private:
  using File = std::array<std::uint64_t, 3>;  ///< the device's two numbers, and the inode

  std::map<File, unsigned> counts_;
};

}  // namespace onecopy
