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

/// May the process still be the owner whose block table has this inode? Its program maps its table for writing
/// from first to last, and exec unmaps everything. True of one that is ending, too: its pidfd tells of that. It takes long.
bool may_own_table(int pid, std::uint64_t inode);

/// What a process of our borrowers maps of ours: for each connection that it has had, the table and a page of its own.
struct BorrowerFiles {
  MappedFile table;
  const char* page_name;
  std::set<std::uint64_t> pages;  ///< inodes of the pages that we know of
  std::function<bool(int pid)>
      is_harmless;  ///< known to be no user without our knowledge, whatever it maps
};

/// Watches out for processes that use our memory without our knowledge: those that map the table more often than they
/// have pages that we know of. It takes long to look at all processes, so that is done less and less often, and
/// once for all who want to know.
/// Thread safety: used by one thread.
class UnseenUsers {
 public:
  /// Somebody new wants to know.
  void hurry() noexcept { looks_.hurry(); }
  bool is_due() const noexcept { return looks_.is_due(); }
  /// Is there one but this process? Also when processes cannot be seen. One that forks and ends meanwhile may be missed.
  bool look(const BorrowerFiles& files);

 private:
  Backoff looks_;
};

}  // namespace onecopy
