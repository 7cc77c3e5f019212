// SPDX-License-Identifier: Apache-2.0
#include "channel/sent_items.h"

#include <algorithm>
#include <array>

#include "onecopy/core/point.h"
#include "share/keeper.h"

namespace onecopy {
namespace {

/// What is put can be opened elsewhere, so its keeper is one of ours.
SharedKeeper& keeper_of(const BlockRef& block) { return static_cast<SharedKeeper&>(*block.keeper()); }

}  // namespace

void SentItems::push(std::uint64_t position, std::span<const BlockRef> blocks) {
  std::lock_guard lock(mutex_);
  const std::size_t before = items_.size();
  try {
    for (const BlockRef& block : blocks) items_.push_back({position, block});
  } catch (...) {
    items_.resize(before);
    throw;
  }
  for (const BlockRef& block : blocks) keeper_of(block).begin_transit(block.number());
  size_.store(items_.size(), std::memory_order_relaxed);
  point("queue.put.held");
}

bool SentItems::release_taken(std::uint64_t head, bool may_wait) noexcept {
  for (;;) {
    std::array<BlockRef, 32> taken;  // given back when no lock is held
    std::size_t count = 0;
    std::unique_lock lock(mutex_, std::defer_lock);
    if (may_wait) lock.lock();
    else if (!lock.try_lock()) return true;
    while (count < taken.size() && !items_.empty() && items_.front().position < head) {
      const BlockRef& block = taken[count++] = std::move(items_.front().block);
      keeper_of(block).end_transit(block.number());
      items_.pop_front();
    }
    size_.store(items_.size(), std::memory_order_relaxed);
    if (count < taken.size()) return !items_.empty();
  }
}

void SentItems::note_age() noexcept {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || items_.empty() || items_.front().position + 1 == oldest_) return;
  oldest_ = items_.front().position + 1;
  oldest_since_ = Holds::Clock::now();
}

TransitInfo SentItems::info(std::string where) const {
  TransitInfo info{size_, 0, std::move(where)};
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock && !items_.empty() && items_.front().position + 1 == oldest_)
    info.age_seconds = std::chrono::duration<double>(Holds::Clock::now() - oldest_since_).count();
  return info;
}

void SentItems::clear() noexcept {
  std::deque<Sent> dropped;
  std::lock_guard lock(mutex_);
  dropped.swap(items_);
  size_.store(0, std::memory_order_relaxed);
}

}  // namespace onecopy
