// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <list>
#include <map>
#include <string>

#include "exported.h"
#include "known_ranges.h"
#include "os/mutex.h"

namespace onecopy::ascend {

/// The memory that this process has opened by keys. Closing a key ends its oldest import, not a chosen one. Imports of
/// a key are therefore shared where possible, and all end with the last one in use. Thread safety: all members may be
/// called concurrently.
class OpenedKeys {
 public:
  static OpenedKeys& get();

  /// Opens the memory and returns its address for `ordinal`, which differs for each access. close() ends it. Throws
  /// owner_died, unsupported.
  void* open(int ordinal, int owner, const ExportedKeys& exported, Access access);
  /// Ends the effect of one open().
  void close(const std::string& name) noexcept;

 private:
  struct Import {
    Import(int at, int owner, void* where, std::size_t bytes, Access how)
        : ordinal(at), access(how), base(where), known(where, bytes, how, owner) {}

    const int ordinal;
    const Access access;
    void* const base;
    const KnownRange known;
  };
  struct Key {
    std::size_t users = 0;
    std::list<Import> imports;  ///< in the order in which the runtime ends them
  };

  Mutex mutex_;
  std::map<std::string, Key> keys_ GUARDED_BY(mutex_);
};

}  // namespace onecopy::ascend
