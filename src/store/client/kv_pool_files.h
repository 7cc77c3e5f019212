// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "os/fd.h"
#include "store/client/kv_pool_memory.h"

namespace onecopy::store {

/// Returns whether the system can report a lack of memory where the first use would end the process (since Linux 5.14).
bool can_populate() noexcept;

/// The memory of a KV pool as two files of the store's directory.
///
/// Guarantee: the files outlive all processes, and find() returns complete ones only. Mechanism: the file of the control
/// memory gets its name last, and the next user ends what dead users have left, as in any KV pool. Cost: the directory
/// must lie on tmpfs. Stop: remove(), or the end of the directory or the system. Thread safety: none.
struct KvPoolFiles {
  Fd memory;
  Fd control;

  /// Returns whether the KV pool has files.
  static bool exist(const std::string& directory, const std::string& name);
  /// Opens the files that an earlier keeper's KV pool has left. Throws bad_file if another version of onecopy has made
  /// them, or they are damaged. REQUIRES: the caller holds the KvPoolLock of the name.
  static std::optional<KvPoolFiles> find(const std::string& directory, const std::string& name);
  /// Makes the files. Throws unsupported if the directory is not on a tmpfs of that size, and out_of_memory. REQUIRES: as
  /// find().
  static KvPoolFiles make(const std::string& directory, const std::string& name, const KvGeometry& geometry,
                          std::uint64_t bytes);
  /// Returns the paths of all KV pools in the directory, without endings, and the memory that their files hold.
  static std::map<std::string, std::uint64_t> all(const std::string& directory);
  /// Removes the files, if there are some. Processes that have mapped them keep the memory. Throws timeout.
  static void remove(const std::string& directory, const std::string& name);
};

}  // namespace onecopy::store
