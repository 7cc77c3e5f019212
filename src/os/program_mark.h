// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "os/fd.h"
#include "os/mapping.h"

namespace onecopy {

/// Marks a file in memory for as long as the calling program runs. Whoever has the file sees the end of that program,
/// without looking at its process: also from another user namespace or PID namespace, and without `/proc`.
///
/// The mark is a lock of an open file that only a mapping keeps open. The kernel takes the mapping away when the
/// process ends or calls exec. Closing all descriptors leaves it, and forked children do not get it.
///
/// Thread safety: as a value. REQUIRES: it is not destroyed in a forked child, where other memory may lie at the
/// addresses of the mapping.
class ProgramMark {
 public:
  /// Throws out_of_descriptors, out_of_mappings, out_of_memory, system.
  explicit ProgramMark(const Fd& file);

 private:
  Mapping page_;
};

/// Returns false if the program that marked the file with this inode has ended. Returns true if that cannot be told,
/// because the descriptor has been closed or stands for another file. REQUIRES: the file had a mark.
bool may_be_marked(const Fd& file, std::uint64_t inode) noexcept;

}  // namespace onecopy
