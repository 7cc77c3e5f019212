// SPDX-License-Identifier: Apache-2.0
#include "share/owner/pools.h"

#include <malloc.h>

#include <algorithm>

#include "os/memory_limit.h"

namespace onecopy {

Pool& Pools::of(SegmentKind kind, Device device) {
  const ByPlace::key_type key{kind, device};
  if (const auto* last = last_.load(std::memory_order_acquire); last && last->first == key)
    return *last->second;
  const LockGuard lock(mutex_);
  auto at = pools_.find(key);
  if (at == pools_.end()) {
    auto made = std::make_unique<Pool>(backend(device.type), device.index, kind, owner_, segments_);
    made->on_idle = idle_;
    at = pools_.emplace(key, std::move(made)).first;
  }
  last_.store(&*at, std::memory_order_release);
  return *at->second;
}

std::uint64_t Pools::live_bytes() const {
  const LockGuard lock(mutex_);
  std::uint64_t bytes = 0;
  for (const auto& [key, pool] : pools_) bytes += pool->stats().live_bytes;
  return bytes;
}

Pool::TrimResult Pools::trim() {
  if (!trimming_.try_lock()) return {0, true};  // trim_all() is running
  const LockGuard lock(trimming_, std::adopt_lock);
  Pool::TrimResult all_trimmed;
  for (Pool* pool : all()) {
    const Pool::TrimResult trimmed = pool->trim(std::chrono::steady_clock::now(), kAtOnce);
    all_trimmed.waiting = all_trimmed.waiting || trimmed.waiting;
    all_trimmed.bytes = std::max(all_trimmed.bytes, trimmed.bytes);
  }
  return all_trimmed;
}

std::uint64_t Pools::trim_all(std::optional<Device> device) {
  const LockGuard lock(trimming_);
  std::uint64_t bytes = 0;
  for (Pool* pool : all(device)) bytes += pool->trim_all();
  return bytes;
}

void Pools::look_again() {
  {
    const LockGuard lock(trimming_);
    for (Pool* pool : all()) pool->look_again();
  }
  if (idle_) idle_();
}

void Pools::end(SegmentKind kind) {
  const LockGuard trimming(trimming_);
  const LockGuard lock(mutex_);
  last_ = nullptr;
  std::erase_if(pools_, [kind](const auto& p) { return p.first.first == kind; });
}

void Pools::lock() {
  mutex_.lock();
  for (auto& [key, pool] : pools_) pool->lock();
}

void Pools::unlock() {
  for (auto& [key, pool] : pools_) pool->unlock();
  mutex_.unlock();
}

void Pools::abandon() noexcept {
  for (auto& [key, pool] : pools_) pool->abandon();
}

std::vector<Pool*> Pools::all(std::optional<Device> device) const {
  const LockGuard lock(mutex_);
  std::vector<Pool*> list;
  for (const auto& [key, pool] : pools_)
    if (!device || key.second == *device) list.push_back(pool.get());
  return list;
}

namespace {

constexpr std::uint64_t kAlwaysFits = std::uint64_t{256} << 20;
constexpr std::uint64_t kPartOfTheRest = 8;
/// The released bytes that malloc may keep.
constexpr std::uint64_t kNotTrimmed = std::uint64_t{16} << 20;

/// Returns an eighth of the memory that this process may still use.
std::uint64_t room() {
  static const MemoryLimits limits;
  std::uint64_t left = limits.machine_available().value_or(0);
  if (const auto group = limits.tightest()) left = std::min(left, group->available());
  return std::max(kAlwaysFits, left / kPartOfTheRest);
}

/// Returns the free memory of malloc to the system, which other allocators do by themselves.
void trim_heap() noexcept {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

}  // namespace

void FormerMemory::keep(std::shared_ptr<const void> memory, std::uint64_t bytes, Use use,
                        Clock::time_point now) {
  Entries added;
  added.push_back({std::move(memory), bytes, now + (use == Use::item ? kKeptOfItems : kKept)});
  std::uint64_t sum = 0;
  {
    const LockGuard lock(mutex_);
    Kept& kept = kept_[static_cast<std::size_t>(use)];
    kept.entries.splice(kept.entries.end(), added);
    sum = kept.bytes += bytes;
  }
  timer_.request();
  if (use == Use::item && sum > kMaxOfItems) release(take_above(use, kMaxOfItems));
  if (use == Use::shared && sum > kAlwaysFits) release(take_above(use, room()));
}

void FormerMemory::take_oldest(Kept& kept, Entries& taken) noexcept {
  kept.bytes -= kept.entries.front().bytes;
  taken.splice(taken.end(), kept.entries, kept.entries.begin());
}

/// Removes and returns the oldest entries until at most `most` bytes are left. The newest entry stays.
FormerMemory::Entries FormerMemory::take_above(Use use, std::uint64_t most) {
  Entries taken;
  const LockGuard lock(mutex_);
  Kept& kept = kept_[static_cast<std::size_t>(use)];
  while (kept.bytes > most && kept.entries.size() > 1) take_oldest(kept, taken);
  return taken;
}

bool FormerMemory::release(Entries taken) noexcept {
  std::uint64_t bytes = 0;
  for (const Entry& entry : taken) bytes += entry.bytes;
  taken.clear();
  const LockGuard lock(mutex_);
  released_ += bytes;  // not before, since a trim beside the release would miss a part of it
  return released_ >= kNotTrimmed;
}

/// Trims the heap once nothing is kept, since a busy process uses its free memory again. Does so a moment
/// after the release, because objects of Python are released by a thread that has the GIL.
Timer::Pause FormerMemory::expire(Clock::time_point now) noexcept {
  Entries over;
  auto next = Clock::time_point::max();
  bool is_idle = false;
  {
    const LockGuard lock(mutex_);
    for (Kept& kept : kept_) {
      while (!kept.entries.empty() && kept.entries.front().until <= now) take_oldest(kept, over);
      if (!kept.entries.empty()) next = std::min(next, kept.entries.front().until);
    }
    is_idle = over.empty() && next == Clock::time_point::max();
    if (is_idle && released_ < kNotTrimmed) return {};
    if (is_idle) released_ = 0;
  }
  if (is_idle) {
    trim_heap();
    return {};
  }
  const bool is_worth_a_trim = release(std::move(over));
  if (next != Clock::time_point::max()) return std::chrono::ceil<std::chrono::milliseconds>(next - now);
  return is_worth_a_trim ? Timer::Pause(kTrimAfter) : Timer::Pause();
}

void FormerMemory::clear() noexcept {
  std::array<Kept, 2> all;
  const LockGuard lock(mutex_);
  all.swap(kept_);
  released_ = 0;
}

}  // namespace onecopy
