// SPDX-License-Identifier: Apache-2.0
#include "share/runtime/former_memory.h"

#include <algorithm>
#include <utility>

#include "os/memory_limit.h"

namespace onecopy {
namespace {

constexpr std::uint64_t kAlwaysFits = std::uint64_t{256} << 20;
constexpr std::uint64_t kPartOfTheRest = 8;

/// An eighth of the memory that this process may still take.
std::uint64_t room() {
  static const MemoryLimits limits;
  std::uint64_t left = limits.machine_available().value_or(0);
  if (const auto group = limits.tightest()) left = std::min(left, group->available());
  return std::max(kAlwaysFits, left / kPartOfTheRest);
}

}  // namespace

void FormerMemory::keep(std::shared_ptr<const void> memory, std::uint64_t bytes, Clock::time_point now) {
  Entries added;
  added.push_back({std::move(memory), bytes, now});
  std::uint64_t sum = 0;
  {
    const LockGuard lock(mutex_);
    entries_.splice(entries_.end(), added);
    sum = bytes_ += bytes;
  }
  timer_.request();
  if (sum > kAlwaysFits) take_above(room());
}

/// The oldest entries, down to so many bytes; the newest stays.
FormerMemory::Entries FormerMemory::take_above(std::uint64_t most) {
  Entries taken;
  const LockGuard lock(mutex_);
  while (bytes_ > most && entries_.size() > 1) {
    bytes_ -= entries_.front().bytes;
    taken.splice(taken.end(), entries_, entries_.begin());
  }
  return taken;
}

Timer::Pause FormerMemory::expire(Clock::time_point now) noexcept {
  Entries over;
  const LockGuard lock(mutex_);
  while (!entries_.empty() && now - entries_.front().since >= kKept) {
    bytes_ -= entries_.front().bytes;
    over.splice(over.end(), entries_, entries_.begin());
  }
  if (entries_.empty()) return {};
  return std::chrono::ceil<std::chrono::milliseconds>(entries_.front().since + kKept - now);
}

void FormerMemory::clear() noexcept {
  Entries all;
  const LockGuard lock(mutex_);
  all.swap(entries_);
  bytes_ = 0;
}

}  // namespace onecopy
