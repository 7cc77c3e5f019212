// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <set>

#include "os/backoff.h"

namespace onecopy {

/// A file in memory, as /proc/<pid>/maps names it.
struct MappedFile {
  const char* name;
  std::uint64_t inode;
};

/// Returns whether the process may still map the file: true if its mappings cannot be read.
bool maps_file(int pid, const MappedFile& file);

/// The files of this process that a borrower maps: for each connection that the borrower has had, the table and a page
/// of its own.
struct BorrowerFiles {
  MappedFile table;
  const char* page_name;
  std::set<std::uint64_t> pages;  ///< the inodes of the known pages
  /// Returns true for a process that is a known user, whatever its mappings.
  std::function<bool(int pid)> is_harmless;
};

/// A detector of processes that use this process's memory without being known here: they map the table more often than
/// they map known pages. A scan of all processes is slow, so scans become less and less frequent and serve all callers
/// together. Thread safety: used by one thread.
class UntrackedMappers {
 public:
  /// Makes a scan due, because a new caller waits for it.
  void hurry() noexcept { looks_.hurry(); }
  bool is_due() const noexcept { return looks_.is_due(); }
  /// Returns whether an unknown process, other than this one, uses the memory. Returns true also if processes cannot be
  /// seen. May miss a process that forks and ends during the scan.
  bool look(const BorrowerFiles& files);

 private:
  Backoff looks_;
};

}  // namespace onecopy
