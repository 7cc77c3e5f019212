// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "os/mutex.h"

namespace onecopy {

/// The parts of this process that higher layers describe for listings: groups of rpc, arenas of captured graphs.
///
/// Thread safety: all members may be called concurrently. Invariant: the function of a part is not called after
/// remove() has returned.
template <class Info>
class Reports {
 public:
  /// Returns a description of the part; empty once the part is gone, after which the function is dropped.
  using Describe = std::function<std::optional<Info>()>;

  /// Adds a part. Any thread may call `describe`, which must neither wait nor throw.
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
      GUARDED_BY(mutex_);  ///< parts that are gone are dropped when they are listed
  std::uint64_t last_ GUARDED_BY(mutex_) = 0;
};

}  // namespace onecopy
