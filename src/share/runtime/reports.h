// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "onecopy/share/stats.h"
#include "os/mutex.h"

namespace onecopy {

/// Parts of this process that other layers describe for listings: groups of rpc, arenas of captured graphs. Each is
/// entered by its own layer.
///
/// Thread safety: all members may be called concurrently.
/// Invariant: once remove() has returned, that function is called no more.
template <class Info>
class Reports {
 public:
  /// Describes the part; empty once the part has gone, and its function with it.
  using Describe = std::function<std::optional<Info>()>;

  /// `describe` may be called by any thread. `describe` must neither wait nor throw.
  std::uint64_t add(Describe describe) {
    const LockGuard lock(mutex_);
    describe_.emplace(++last_, std::move(describe));
    return last_;
  }
  void remove(std::uint64_t id) noexcept {
    const LockGuard lock(mutex_);
    describe_.erase(id);
  }
  std::vector<Info> list() const {
    std::vector<Info> all;
    const LockGuard lock(mutex_);
    std::erase_if(describe_, [&](const auto& entry) {
      std::optional<Info> info = entry.second();
      if (info) all.push_back(std::move(*info));
      return !info;
    });
    return all;
  }

 private:
  mutable Mutex mutex_;
  mutable std::map<std::uint64_t, Describe> describe_
      GUARDED_BY(mutex_);  ///< a look at parts that have gone drops them
  std::uint64_t last_ GUARDED_BY(mutex_) = 0;
};

using GroupReports = Reports<GroupInfo>;
using ArenaReports = Reports<ArenaInfo>;

}  // namespace onecopy
