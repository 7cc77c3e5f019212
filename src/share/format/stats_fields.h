// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "onecopy/share/stats.h"

namespace onecopy {

/// A counter of Stats with its one name, in Python, in JSON and (after "onecopy_") in Prometheus, and what it counts.
struct StatsField {
  const char* name;
  std::uint64_t Stats::*value;
  bool grows;  ///< whether the number only grows: Prometheus then appends "_total"
  const char* help;
};

inline constexpr StatsField kStatsFields[] = {
    {"shared_total", &Stats::shared_total, true, "handles made since the start"},
    {"opened_total", &Stats::opened_total, true, "tensors opened since the start"},
    {"live_blocks", &Stats::live_blocks, false, "blocks allocated here and still referenced here"},
    {"live_bytes", &Stats::live_bytes, false, "bytes of these blocks"},
    {"limbo", &Stats::limbo, false, "blocks freed here, but still held by borrowers"},
    {"in_transit", &Stats::in_transit, false, "blocks kept for receivers that have not opened them yet"},
    {"segments", &Stats::segments, false, "segments of this process"},
    {"foreign_segments", &Stats::foreign_segments, false,
     "segments of other processes that are mapped here"},
    {"bytes_shared", &Stats::bytes_shared, false, "bytes of memory reserved in this process's segments"},
    {"device_segments", &Stats::device_segments, false, "the part of segments that is memory of devices"},
    {"device_bytes", &Stats::device_bytes, false, "the part of bytes_shared that is memory of devices"},
    {"borrowers", &Stats::borrowers, false, "processes that are attached to this process"},
    {"owners", &Stats::owners, false, "processes that this process is attached to"},
    {"leases", &Stats::leases, false, "claims of this process on blocks of other processes"},
    {"deposits", &Stats::deposits, false, "segments of other processes kept open for later receivers"},
    {"unkept", &Stats::unkept, false,
     "segments in queues whose creator does not keep them: items there are lost if this process dies"},
    {"descriptors", &Stats::descriptors, false, "open descriptors of the whole process"},
    {"host_waits", &Stats::host_waits, true,
     "waits of the host for a device: before it reads a copy, or where streams cannot wait"},
    {"direct_copies", &Stats::direct_copies, true,
     "copies between devices made by the destination's device"},
    {"staged_copies", &Stats::staged_copies, true,
     "copies between devices that the driver made through the host, for lack of peer access"},
    {"staged_bytes", &Stats::staged_bytes, true, "bytes of these copies"},
    {"pinned_bytes", &Stats::pinned_bytes, false, "bytes of host memory that are pinned here for devices"},
    {"pageable_copies", &Stats::pageable_copies, true,
     "copies by onecopy between devices and host memory that is not pinned, which are slow"},
    {"pageable_bytes", &Stats::pageable_bytes, true, "bytes of these copies"},
    {"cut_copies", &Stats::cut_copies, true, "copies cut in two at the edge of a pinned range"},
    {"late_releases", &Stats::late_releases, true,
     "references to pinned memory that were dropped while devices had work, and released after it"},
};

}  // namespace onecopy
