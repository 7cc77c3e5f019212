// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "os/fd.h"

namespace onecopy {

// Thread safety: all functions may be called concurrently.

/// Locks a byte of a file for reading, at a random offset, so that the locks of a file can be told apart. The lock belongs
/// to the open file, not to the process: the lock travels with the descriptor through a socket, and lasts until the last
/// descriptor and the last mapping of this open file are gone, in any process. So the kernel ends the lock of a killed
/// process, and a lock whose descriptors are closed shows that a process still maps the file. Throws system.
void lock_for_reading(const Fd& file);

/// Locks a file as lock_for_reading(file) does, with a mark that count_marked_read_locks() sees.
void lock_for_reading_with_mark(const Fd& file);

/// Locks one byte of a file for reading, which may lie behind the end of the file, as lock_for_reading(file) does.
void lock_for_reading(const Fd& file, std::uint64_t byte);

/// Returns false if no open file other than this one has the byte locked. Returns true if this cannot be decided.
bool may_be_read(const Fd& file, std::uint64_t byte) noexcept;

/// Returns false if no open file other than this one is locked for reading. Returns true if this cannot be decided.
bool may_be_read(const Fd& file) noexcept;

/// Returns the number of open files of this file, other than this one, that are locked for reading: those that are
/// locked all the time are counted, whatever the others do meanwhile. Costs about two system calls per lock. Returns 1
/// for what cannot be decided.
unsigned count_read_locks(const Fd& file) noexcept;
/// Returns how many of these locks have the mark.
unsigned count_marked_read_locks(const Fd& file) noexcept;

}  // namespace onecopy
