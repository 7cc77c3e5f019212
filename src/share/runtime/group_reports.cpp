// SPDX-License-Identifier: Apache-2.0
#include "share/runtime/group_reports.h"

#include <utility>

namespace onecopy {

std::uint64_t GroupReports::add(std::function<GroupInfo()> describe) {
  const std::lock_guard lock(mutex_);
  describe_.emplace(++last_, std::move(describe));
  return last_;
}

void GroupReports::remove(std::uint64_t id) noexcept {
  const std::lock_guard lock(mutex_);
  describe_.erase(id);
}

std::vector<GroupInfo> GroupReports::list() const {
  std::vector<GroupInfo> all;
  const std::lock_guard lock(mutex_);
  for (const auto& [id, describe] : describe_) all.push_back(describe());
  return all;
}

}  // namespace onecopy
