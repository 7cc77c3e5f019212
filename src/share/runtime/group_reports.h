// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "onecopy/share/stats.h"

namespace onecopy {

/// The groups of rpc that this process is a member of, for listings: the layer above enters each.
///
/// Thread safety: all members may be called concurrently.
/// Invariant: once remove() has returned, that function is called no more.
class GroupReports {
 public:
  /// `describe` may be called by any thread. It must neither wait nor throw.
  std::uint64_t add(std::function<GroupInfo()> describe);
  void remove(std::uint64_t id) noexcept;
  std::vector<GroupInfo> list() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::function<GroupInfo()>> describe_;
  std::uint64_t last_ = 0;
};

}  // namespace onecopy
