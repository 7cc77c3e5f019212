// SPDX-License-Identifier: Apache-2.0
#include "share/borrower/segment_retention.h"

#include <algorithm>
#include <utility>

namespace onecopy {

std::uint64_t RetainedElsewhere::add(const SegmentKey& segment, const ProcessId& keeper) {
  const LockGuard lock(mutex_);
  return keepers_[segment][keeper] = ++last_number_;
}

void RetainedElsewhere::retire(const SegmentKey& segment) {
  if (note_retired(segment) && on_news) on_news();
}

bool RetainedElsewhere::note_retired(const SegmentKey& segment) {
  const LockGuard lock(mutex_);
  const auto kept = keepers_.find(segment);
  if (kept == keepers_.end()) return false;
  for (const auto& [keeper, number] : kept->second) retired_[segment].insert(keeper);
  keepers_.erase(kept);
  return true;
}

void RetainedElsewhere::release_all_of(const std::string& owner) {
  bool is_news = false;
  {
    const LockGuard lock(mutex_);
    auto at = keepers_.lower_bound({owner, 0});
    for (; at != keepers_.end() && at->first.first == owner; at = keepers_.erase(at))
      for (const auto& [keeper, number] : at->second) releases_.push_back({at->first, keeper, number});
    is_news = !releases_.empty();
  }
  if (is_news && on_news) on_news();
}

bool RetainedElsewhere::has_keeper(const ProcessId& process) const noexcept {
  const LockGuard lock(mutex_);
  return std::ranges::any_of(keepers_, [&](const auto& kept) { return kept.second.contains(process); });
}

std::map<SegmentKey, std::set<ProcessId>> RetainedElsewhere::take_retired() noexcept {
  const LockGuard lock(mutex_);
  return std::exchange(retired_, {});
}

std::vector<Release> RetainedElsewhere::take_releases() noexcept {
  const LockGuard lock(mutex_);
  return std::exchange(releases_, {});
}

void RetainedElsewhere::release_later(Release again) {
  const LockGuard lock(mutex_);
  releases_.push_back(std::move(again));
}

void RetainedElsewhere::clear() noexcept {
  keepers_.clear();
  retired_.clear();
  releases_.clear();
}

}  // namespace onecopy
