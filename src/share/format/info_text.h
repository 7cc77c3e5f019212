// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "onecopy/share/stats.h"

namespace onecopy {

/// The counters of Stats with their names in JSON and in Python.
inline constexpr std::array<std::pair<const char*, std::uint64_t Stats::*>, 26> kStatsFields{{
    {"shared_total", &Stats::shared_total},
    {"opened_total", &Stats::opened_total},
    {"live_blocks", &Stats::live_blocks},
    {"live_bytes", &Stats::live_bytes},
    {"limbo", &Stats::limbo},
    {"in_transit", &Stats::in_transit},
    {"segments", &Stats::segments},
    {"foreign_segments", &Stats::foreign_segments},
    {"bytes_shared", &Stats::bytes_shared},
    {"device_segments", &Stats::device_segments},
    {"device_bytes", &Stats::device_bytes},
    {"borrowers", &Stats::borrowers},
    {"owners", &Stats::owners},
    {"leases", &Stats::leases},
    {"deposits", &Stats::deposits},
    {"unkept", &Stats::unkept},
    {"descriptors", &Stats::descriptors},
    {"host_waits", &Stats::host_waits},
    {"direct_copies", &Stats::direct_copies},
    {"staged_copies", &Stats::staged_copies},
    {"staged_bytes", &Stats::staged_bytes},
    {"pinned_bytes", &Stats::pinned_bytes},
    {"pageable_copies", &Stats::pageable_copies},
    {"pageable_bytes", &Stats::pageable_bytes},
    {"cut_copies", &Stats::cut_copies},
    {"late_releases", &Stats::late_releases},
}};

/// Returns the JSON in which a process describes itself to `onecopy ls`, which prints it with `--format json`.
/// Other releases can read it.
std::string to_json(const OwnerInfo& info);
/// Reads the JSON of to_json(). Missing fields are zero; unknown ones are skipped. Throws protocol if the text is not
/// JSON.
OwnerInfo owner_from_json(const std::string& text);

}  // namespace onecopy
