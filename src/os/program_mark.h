// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "os/fd.h"
#include "os/mapping.h"

namespace onecopy {

/// A mark on a file in memory for as long as the calling program runs. A process that has the file open sees the end of
/// the program without looking at its process, even from another user or PID namespace and without `/proc`.
///
/// The mark is a lock of an open file that only a mapping keeps open. The kernel removes the mapping when the process
/// ends or calls exec. Closing all descriptors does not end the mark, and forked children do not inherit it.
///
/// Thread safety: as a value. REQUIRES: not destroyed in a forked child, where other memory may lie at the addresses of
/// the mapping.
class ProgramMark {
 public:
  /// Marks the file. Throws out_of_descriptors, out_of_mappings, out_of_memory, system.
  explicit ProgramMark(const Fd& file);
  /// Marks one byte of the file, so that several programs can be told apart. Throws as the other constructor.
  ProgramMark(const Fd& file, std::uint64_t byte);

 private:
  Mapping page_;
};

/// Returns false if the program that marked the file with this inode has ended. Returns true if this cannot be decided,
/// because the descriptor was closed or stands for another file. REQUIRES: the file had a mark.
bool may_be_marked(const Fd& file, std::uint64_t inode) noexcept;

/// Does the same for the mark of one byte.
bool may_be_marked(const Fd& file, std::uint64_t inode, std::uint64_t byte) noexcept;

}  // namespace onecopy
