// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>

#include <fmt/format.h>

#include "os/log.h"
#include "store/keeper/worker.h"

namespace onecopy::store {
namespace {

/// A limit and the versions that count towards it.
struct Limit {
  std::uint64_t max;
  std::string what;
  std::function<bool(const VersionRecord&)> counts;
};

std::vector<Limit> limits_for(const Limits& limits, const VersionRecord& version) {
  std::vector<Limit> all{{limits.bytes, "all versions", [](const VersionRecord&) { return true; }}};
  all.push_back({limits.client_bytes, fmt::format("versions of pid {}", version.publisher),
                 [&](const VersionRecord& other) { return other.publisher == version.publisher; }});
  if (const auto device = limits.devices.find(version.device); device != limits.devices.end())
    all.push_back({device->second, "versions on " + version.device,
                   [&](const VersionRecord& other) { return other.device == version.device; }});
  return all;
}

}  // namespace

/// Returns the versions that are not current and have no reader, the oldest first.
std::vector<const VersionRecord*> Worker::reclaimable() const {
  std::vector<const VersionRecord*> found;
  if (Clock::now() < reclaims_from_) return found;
  for (const auto& [name, object] : catalog_.objects()) {
    const std::uint64_t current = catalog_.current(name)->record.id;
    for (const auto& [number, version] : object.versions)
      if (version.record.id != current && !readers_.contains(version.record.id))
        found.push_back(&version.record);
  }
  std::ranges::sort(found, {}, [](const VersionRecord* version) { return version->made_at; });
  return found;
}

/// Drops old versions if a limit would be exceeded. Throws out_of_memory, with nothing dropped, if dropping all of them
/// would not suffice.
void Worker::make_room(const VersionRecord& version) {
  std::vector<std::uint64_t> dropped;
  const auto old = reclaimable();
  for (const Limit& limit : limits_for(holdings_.limits, version)) {
    std::uint64_t used = 0;
    for (const auto& [name, object] : catalog_.objects())
      for (const auto& [number, other] : object.versions)
        if (limit.counts(other.record)) used += other.record.bytes;
    std::uint64_t left = used;
    for (const VersionRecord* const other : old) {
      if (version.bytes <= limit.max && left <= limit.max - version.bytes) break;
      if (!limit.counts(*other)) continue;
      left -= other->bytes;
      dropped.push_back(other->id);
    }
    if (version.bytes > limit.max || left > limit.max - version.bytes)
      throw Error(
          ErrorCode::out_of_memory,
          fmt::format("the version has {} bytes, and {} have {} of the {} that they may have; delete "
                      "objects, or start the keeper with a higher limit",
                      version.bytes, limit.what, used, limit.max));
  }
  for (const std::uint64_t id : dropped)
    if (catalog_.find(id)) drop(id);
}

/// Returns the time at which the next version becomes too old; time_point::max() if there is none.
Worker::Clock::time_point Worker::next_old() const {
  if (!holdings_.limits.age) return Clock::time_point::max();
  if (Clock::now() < reclaims_from_) return reclaims_from_;
  const auto old = reclaimable();
  if (old.empty()) return Clock::time_point::max();
  const auto made = std::chrono::system_clock::time_point(std::chrono::nanoseconds(old.front()->made_at));
  return Clock::now() + (made + *holdings_.limits.age - std::chrono::system_clock::now());
}

void Worker::reclaim_old() {
  if (!holdings_.limits.age) return;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::vector<std::uint64_t> ids;
  for (const VersionRecord* const version : reclaimable())
    if (now - std::chrono::nanoseconds(version->made_at) >= *holdings_.limits.age)
      ids.push_back(version->id);
  for (const std::uint64_t id : ids) drop(id);
}

}  // namespace onecopy::store
