// SPDX-License-Identifier: Apache-2.0
// This process's reports of itself: stats(), and the answer to `onecopy ls`.
#include <dirent.h>

#include <map>
#include <memory>

#include "device/copy_counts.h"
#include "device/pinned_ranges.h"
#include "os/process.h"
#include "share/owner/late_releases.h"
#include "share/runtime/runtime.h"

namespace onecopy {
namespace {

/// Of this process, the one that lists them included. 0 when /proc cannot be read.
std::uint64_t count_descriptors() noexcept {
  const std::unique_ptr<DIR, int (*)(DIR*)> all(::opendir("/proc/self/fd"), &::closedir);
  std::uint64_t count = 0;
  while (const dirent* entry = all ? ::readdir(all.get()) : nullptr) count += entry->d_name[0] != '.';
  return count;
}

}  // namespace

std::vector<TransitInfo> Runtime::transits() const {
  std::vector<TransitInfo> list = broker_.undelivered();
  const auto now = Holds::Clock::now();
  for (const auto since : holds_.list())
    list.push_back({1, std::chrono::duration<double>(now - since).count(), "handle"});
  queues_.list_transits(list);
  return list;
}

Stats Runtime::stats() const {
  Stats s;
  s.shared_total = shared_total_;
  s.opened_total = opened_total_;
  s.unkept = queues_.unkept();
  s.live_blocks = ledger_.live();
  s.limbo = ledger_.limbo();
  for (const TransitInfo& transit : transits()) s.in_transit += transit.blocks;
  for (const SegmentInfo& segment : segments_.list()) {
    ++s.segments;
    s.bytes_shared += segment.committed;
    if (segment.device == kCpu) continue;
    ++s.device_segments;
    s.device_bytes += segment.committed;
  }
  for (const auto& peer : peers_.list()) {
    ++s.owners;
    s.foreign_segments += peer->blocks().segments().count();
    s.leases += peer->blocks().leases().count();
  }
  s.borrowers = broker_.borrower_count();
  s.deposits = retention_.segments.size();
  s.host_waits = host_waits;
  s.direct_copies = copy_counts.direct;
  s.staged_copies = copy_counts.staged;
  s.staged_bytes = copy_counts.staged_bytes;
  s.pinned_bytes = PinnedRanges::any() ? PinnedRanges::get().bytes() : 0;
  s.pageable_copies = copy_counts.pageable;
  s.pageable_bytes = copy_counts.pageable_bytes;
  s.cut_copies = copy_counts.cut;
  if (const LateReleases* const late = LateReleases::active()) s.late_releases = late->total();
  s.live_bytes = pools_.live_bytes();
  s.descriptors = count_descriptors();
  return s;
}

std::vector<DeviceUse> Runtime::devices() const {
  std::map<Device, DeviceUse> found;
  for (const SegmentInfo& segment : segments_.list()) {
    DeviceUse& use = found[segment.device];
    use.device = segment.device.str();
    if (segment.identity && segment.device != kCpu) use.uuid = segment.identity->uuid.str();
    ++use.segments;
    use.bytes += segment.committed;
  }
  std::vector<DeviceUse> list;
  list.reserve(found.size());
  for (auto& [device, use] : found) list.push_back(std::move(use));
  return list;
}

OwnerInfo Runtime::describe() const {
  OwnerInfo info;
  info.pid = current_pid();
  info.name = process_name(info.pid);
  info.socket = name_;
  info.stats = stats();
  info.devices = devices();
  info.borrowers = broker_.borrowers();
  info.in_transit = transits();
  info.groups = groups_.list();
  info.arenas = arenas_.list();
  return info;
}

}  // namespace onecopy
