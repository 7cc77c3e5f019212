// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "onecopy/store/kv_pool.h"

namespace onecopy::store {

/// A number of KvPoolStats, as the command and Python name it.
struct KvPoolMetric {
  const char* name;
  bool grows;  ///< a counter of Prometheus; else a gauge
  const char* help;
  std::uint64_t KvPoolStats::*value;
};

inline constexpr KvPoolMetric kKvPoolMetrics[] = {
    {"blocks", false, "blocks of the namespace", &KvPoolStats::blocks},
    {"free", false, "blocks with neither a key nor a lease", &KvPoolStats::free},
    {"idle", false, "blocks with a key that can be evicted", &KvPoolStats::idle},
    {"leased", false, "blocks with a lease", &KvPoolStats::leased},
    {"writing", false, "blocks of which parts are missing", &KvPoolStats::writing},
    {"users", false, "processes that use the KV pool", &KvPoolStats::users},
    {"hits", true, "keys that were found", &KvPoolStats::hits},
    {"misses", true, "keys that were not found", &KvPoolStats::misses},
    {"stored", true, "keys that became visible", &KvPoolStats::stored},
    {"evictions", true, "keys that made room for others", &KvPoolStats::evictions},
    {"evicted_age_ms", false, "the time since the last use of the key that was evicted last",
     &KvPoolStats::evicted_age_ms},
    {"growth_waits", true, "calls that waited until the system had allocated memory",
     &KvPoolStats::growth_waits},
    {"free_bytes", false, "bytes of the budget that no namespace has", &KvPoolStats::free_bytes},
    {"timeouts", true, "calls that gave up because a process was stopped", &KvPoolStats::timeouts},
    {"recoveries", true, "processes that died in the middle of a call", &KvPoolStats::recoveries},
    {"files_removed", false,
     "1 if files of a KV pool with outlives_keeper are gone: it ends with the keeper",
     &KvPoolStats::files_removed},
};

}  // namespace onecopy::store
