// SPDX-License-Identifier: Apache-2.0
#include "store/keeper/reservations.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>

#include "core/throw_error.h"

namespace onecopy::store {
namespace {

/// A limit and the versions that count towards it.
struct Limit {
  std::uint64_t max;
  std::string what;
  std::function<bool(const VersionRecord&)> counts;
};

std::vector<Limit> limits_for(const Limits& limits, const VersionRecord& version) {
  std::vector<Limit> all{
      {limits.bytes, "all versions and drafts", [](const VersionRecord&) { return true; }}};
  all.push_back({limits.client_bytes, fmt::format("versions and drafts of pid {}", version.publisher),
                 [&](const VersionRecord& other) { return other.publisher == version.publisher; }});
  if (const auto device = limits.devices.find(version.device); device != limits.devices.end())
    all.push_back({device->second, "versions and drafts on " + version.device,
                   [&](const VersionRecord& other) { return other.device == version.device; }});
  return all;
}

}  // namespace

KeptLimits Limits::kept() const {
  KeptLimits kept{bytes, client_bytes, age ? static_cast<std::uint64_t>(age->count()) : 0, {}};
  for (const auto& [device, max] : devices) kept.devices.push_back({device, max});
  return kept;
}

Limits Limits::from(const KeptLimits& kept) {
  Limits limits{.bytes = kept.bytes, .client_bytes = kept.client_bytes};
  if (kept.age != 0) limits.age = std::chrono::seconds(kept.age);
  for (const auto& [device, max] : kept.devices) limits.devices[device] = max;
  return limits;
}

void Limits::inherit(const Limits& former) {
  if (bytes == UINT64_MAX) bytes = former.bytes;
  if (client_bytes == UINT64_MAX) client_bytes = former.client_bytes;
  if (!age) age = former.age;
  devices.insert(former.devices.begin(), former.devices.end());
}

std::vector<std::uint64_t> Reservations::make(const VersionRecord& version, Versions all,
                                              Versions old) const {
  std::vector<std::uint64_t> dropped;
  for (const Limit& limit : limits_for(limits_, version)) {
    std::uint64_t used = 0;
    for (const VersionRecord* const other : all)
      if (limit.counts(*other)) used += other->bytes;
    for (const auto& [token, other] : reserved_)
      if (token != version.token && limit.counts(other.version)) used += other.version.bytes;
    std::uint64_t left = used;
    for (const VersionRecord* const other : old) {
      if (version.bytes <= limit.max && left <= limit.max - version.bytes) break;
      if (!limit.counts(*other)) continue;
      left -= other->bytes;
      if (std::ranges::find(dropped, other->id) == dropped.end()) dropped.push_back(other->id);
    }
    if (version.bytes > limit.max || left > limit.max - version.bytes)
      throw_error(ErrorCode::out_of_memory,
                  "the version has {} bytes, and {} have {} of the {} that they may have; delete "
                  "objects, or start the keeper with a higher limit",
                  version.bytes, limit.what, used, limit.max);
  }
  return dropped;
}

}  // namespace onecopy::store
