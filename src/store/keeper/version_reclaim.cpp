// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <span>
#include <utility>

#include "store/keeper/version_rules.h"

namespace onecopy::store {

std::vector<const VersionRecord*> VersionRules::versions_here() const {
  std::vector<const VersionRecord*> here;
  for (const auto& [name, object] : catalog_.objects())
    for (const auto& [number, version] : object.versions)
      if (keeper_.is_here(version.record.id)) here.push_back(&version.record);
  return here;
}

/// Returns the versions that are here, are not the newest of their object that is here, and have no reader, the oldest
/// first.
std::vector<const VersionRecord*> VersionRules::droppable() const {
  std::vector<const VersionRecord*> found;
  for (const auto& [name, object] : catalog_.objects()) {
    const VersionRecord* newest = nullptr;
    for (const auto* const version : catalog_.by_shown(name)) {
      if (!keeper_.is_here(version->record.id)) continue;
      if (newest && !keeper_.may_be_read(newest->id)) found.push_back(newest);
      newest = &version->record;
    }
  }
  std::ranges::sort(found, {}, &VersionRecord::made_at);
  return found;
}

std::vector<std::uint64_t> VersionRules::room_for(const VersionRecord& version) const {
  const Limits& limits = reservations_.limits();
  if (limits.bytes == UINT64_MAX && limits.client_bytes == UINT64_MAX && limits.devices.empty()) return {};
  return reservations_.make(version, all_beside(version), droppable());
}

/// Returns all versions and all parts of transactions except the one with the same token.
std::vector<const VersionRecord*> VersionRules::all_beside(const VersionRecord& version) const {
  auto all = versions_here();
  for (const auto& [token, open] : catalog_.transactions().open())
    for (const auto& [id, part] : open.parts)
      if (part.token != version.token) all.push_back(&part);
  return all;
}

void VersionRules::reserve(std::uint64_t owner, const VersionRecord& version) {
  check_name(version.name);
  room_for(version);
  reservations_.reserve(owner, version);
}

void VersionRules::reclaim(const std::string& name) {
  const auto* const object = catalog_.object(name);
  if (!object) return;
  const auto published = published_.find(name);
  const bool is_passed = published != published_.end() && published->second > object->keep;
  const VersionRecord* const current = this->current(name);
  for (const std::uint64_t id : catalog_.older_than_newest(name, object->keep)) {
    if (current && id == current->id) continue;
    const bool is_here = keeper_.is_here(id);
    if (is_here ? current && !keeper_.may_be_read(id) : is_passed) drop(id);
    else unreclaimed_.insert(name);
  }
}

void VersionRules::poll_all() {
  for (const auto& [name, object] : catalog_.objects()) unreclaimed_.insert(name);
}

void VersionRules::reclaim_due() {
  abort_broken();
  give_up_awaited();
  for (const std::string& name : std::exchange(unreclaimed_, {})) reclaim(name);
  expire_by_age();
}

void VersionRules::give_up_awaited() {
  if (has_given_up_ || keeper_.now() < begin_ + kAwaited) return;
  for (const auto& [name, object] : catalog_.objects()) {
    std::vector<std::uint64_t> ids;
    for (const auto& [number, version] : object.versions)
      if (!keeper_.is_here(version.record.id)) ids.push_back(version.record.id);
    if (ids.empty()) continue;
    for (const std::uint64_t id : ids) drop(id);
    Record record = catalog_.record(name);
    for (DroppedVersion& last : std::span(record.dropped).last(std::min(ids.size(), record.dropped.size())))
      last.number |= DroppedVersion::kGivenUp;
    write(record);
  }
  has_given_up_ = true;
}

void VersionRules::expire_by_age() {
  if (!reservations_.limits().age) return;
  const std::chrono::nanoseconds now(keeper_.wall_clock());
  std::vector<std::uint64_t> ids;
  for (const VersionRecord* const version : droppable())
    if (now - std::chrono::nanoseconds(version->made_at) >= *reservations_.limits().age)
      ids.push_back(version->id);
  for (const std::uint64_t id : ids) drop(id);
}

void VersionRules::drop_unread() {
  for (const VersionRecord* const version : versions_here())
    if (!keeper_.may_be_read(version->id)) drop(version->id);
}

VersionRules::Clock::time_point VersionRules::next_reclaim() const {
  const Clock::time_point now = keeper_.now();
  const bool has_work = !unreclaimed_.empty() || !catalog_.transactions().open().empty();
  Clock::time_point next = has_work ? now + kNextPoll : Clock::time_point::max();
  if (!has_given_up_ && versions_here().size() != catalog_.size()) next = std::min(next, begin_ + kAwaited);
  if (!reservations_.limits().age) return next;
  const auto old = droppable();
  if (old.empty()) return next;
  const std::chrono::nanoseconds age(keeper_.wall_clock() - old.front()->made_at);
  return std::min(
      next, now + std::max<Clock::duration>(*reservations_.limits().age - age, Clock::duration::zero()));
}

}  // namespace onecopy::store
