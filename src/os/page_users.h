// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <set>

#include "os/backoff.h"

namespace onecopy {

/// A file in memory as /proc/<pid>/maps shows it.
struct MappedFile {
  const char* name;
  std::uint64_t inode;
};

/// May the process still map it? True when it cannot be seen.
bool maps_file(int pid, const MappedFile& file);

/// The files of ours that a borrower's process maps: for each connection that it has had, the table and a page of its
/// own.
struct BorrowerFiles {
  MappedFile table;
  const char* page_name;
  std::set<std::uint64_t> pages;  ///< inodes of the pages that we know of
  std::function<bool(int pid)>
      is_harmless;  ///< true for a process that is no unknown user, whatever its mappings
};

/// Looks for processes that use our memory unknown to us: they map the table more often than they have pages that we
/// know of. A look at all processes takes long. Therefore it is done less and less often, and once for all callers.
/// Thread safety: used by one thread.
class UntrackedMappers {
 public:
  /// A new caller waits for a look.
  void hurry() noexcept { looks_.hurry(); }
  bool is_due() const noexcept { return looks_.is_due(); }
  /// Is there such a process besides this one? Also true if processes cannot be seen. A process that forks and ends
  /// meanwhile may be missed.
  bool look(const BorrowerFiles& files);

 private:
  Backoff looks_;
};

}  // namespace onecopy
