// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "os/fd.h"
#include "store/format/record.h"

namespace onecopy::store {

/// Checks the descriptors that came with a version: a sealed table, then chunks that together have the version's bytes.
/// Memory of the CPU must be sealed against writing and shrinking, or only against shrinking if it was published as it
/// is. Memory of a driver is checked by the driver of the process that opens it. Throws invalid_argument, bad_handle.
void check_files(const VersionRecord& version, std::span<const Fd> fds);

/// Returns whether a process may read a version, of which these are the descriptors: a reader has locked an open file of
/// the table, and whoever maps a tensor that was sent has one of the memory.
bool may_be_read(const VersionRecord& version, std::span<const Fd> files) noexcept;
/// Returns the number of such locks. A process that has sent tensors counts a second time, as long as they are used.
unsigned count_readers(const VersionRecord& version, std::span<const Fd> files) noexcept;

/// Locks an open file of a version's table for a reader. `keeps`: the reader keeps the descriptors of the version.
void lock_for_reader(const VersionRecord& version, const Fd& table, bool keeps);
/// Returns the number of readers that keep no descriptors.
unsigned count_unkept(std::span<const Fd> files) noexcept;

}  // namespace onecopy::store
