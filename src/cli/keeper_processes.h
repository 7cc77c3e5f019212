// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "os/fd.h"
#include "store/format/store_directory.h"

namespace onecopy::cli {

/// A process of a keeper, of any version of onecopy.
struct KeeperProcess {
  int pid = 0;
  Fd end;  ///< a pidfd
};

/// Returns the processes that hold the lock of a directory. Asks only the kernel, so that it finds a keeper that does not answer
/// or speaks another protocol.
std::vector<KeeperProcess> keeper_processes(const store::StoreDirectories& directories);

/// Returns the memory of versions that the processes hold.
std::uint64_t held_bytes(const std::vector<KeeperProcess>& processes);

/// Kills all processes of the keeper, also those that it starts meanwhile. Returns those that it found first; none if there is
/// no keeper. Throws timeout if processes are left after ten seconds.
std::vector<KeeperProcess> kill_keeper(const store::StoreDirectories& directories);

}  // namespace onecopy::cli
