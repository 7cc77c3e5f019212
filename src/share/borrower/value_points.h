// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "device/order/timeline.h"
#include "onecopy/share/handle_fields.h"
#include "os/mutex.h"
#include "os/process.h"

namespace onecopy {

/// How far other streams had come when they put values that this process has got. A device that this process begins
/// to use later comes after them, too. Points that are passed are forgotten.
///
/// Thread safety: all members may be called concurrently.
class ValuePoints {
 public:
  struct Entry {
    ProcessId putter;
    TimelinePoint point;
  };

  /// A later point of a stream replaces an earlier one. REQUIRES: `has_passed(entry)` takes no lock of a caller's.
  template <class HasPassed>
  void remember(const Entry& entry, HasPassed&& has_passed) {
    constexpr std::size_t kMany = 64;
    const LockGuard lock(mutex_);
    if (latest_.size() >= kMany)
      std::erase_if(latest_, [&](const auto& known) { return has_passed(entry_of(known)); });
    std::uint64_t& value = latest_[{entry.putter, entry.point.slot}];
    if (value < entry.point.value) value = entry.point.value;
  }
  std::vector<Entry> all() const {
    std::vector<Entry> entries;
    const LockGuard lock(mutex_);
    for (const auto& known : latest_) entries.push_back(entry_of(known));
    return entries;
  }

 private:
  using Latest = std::map<std::pair<ProcessId, std::uint32_t>, std::uint64_t>;
  static Entry entry_of(const Latest::value_type& known) {
    return {known.first.first, {known.first.second, known.second}};
  }

  mutable Mutex mutex_;
  Latest latest_ GUARDED_BY(mutex_);  ///< by putter and slot
};

}  // namespace onecopy
