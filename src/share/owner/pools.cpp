// SPDX-License-Identifier: Apache-2.0
#include "share/owner/pools.h"

#include <algorithm>
#include <chrono>

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
  if (!trimming_.try_lock()) return {0, true};  // trim_all() is at it
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

}  // namespace onecopy
