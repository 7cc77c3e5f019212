// SPDX-License-Identifier: Apache-2.0
#include "channel/queue/items_in_flight.h"

#include "core/point.h"
#include "share/session.h"

namespace onecopy {
ItemsInFlight::ItemsInFlight(const Ring& ring, std::uint64_t channel)
    : ring_(ring),
      channel_(channel),
      chunks_(std::make_unique<Chunk>()),
      write_{chunks_.get(), 0},
      read_{chunks_.get(), 0} {}

void ItemsInFlight::push(std::uint64_t position, std::span<const BlockRef> blocks) {
  const Cursor end = write(position, blocks);
  for (const BlockRef& block : blocks) block.group()->add_reference(block.number());
  publish(end, blocks);
}

void ItemsInFlight::push(std::uint64_t position, BlockRef&& block) {
  publish(write(position, {&block, 1}), {&block, 1});
  block.detach();
}

void ItemsInFlight::reserve() {
  if (write_.index == write_.chunk->items.size() && !write_.chunk->next)
    write_.chunk->next = std::make_unique<Chunk>();
}

bool ItemsInFlight::ends_with(std::span<const BlockRef> blocks) const noexcept {
  if (blocks.size() != 1 || write_.index == 0) return false;
  const Sent& last = write_.chunk->items[write_.index - 1];
  return last.group == blocks.front().group() && last.number == blocks.front().number();
}

/// Writes the blocks of an item and returns the place for the next ones. The blocks do not count until publish().
ItemsInFlight::Cursor ItemsInFlight::write(std::uint64_t position, std::span<const BlockRef> blocks) {
  Cursor end = write_;
  for (const BlockRef& block : blocks) {
    if (end.index == end.chunk->items.size()) {
      if (!end.chunk->next) end.chunk->next = std::make_unique<Chunk>();
      end = {end.chunk->next.get(), 0};
    }
    end.chunk->items[end.index++] = {position, block.group(), block.number()};
  }
  return end;
}

void ItemsInFlight::publish(Cursor end, std::span<const BlockRef> blocks) noexcept {
  for (const BlockRef& block : blocks) as_shared(*block.group()).begin_transit(block.number(), channel_);
  write_ = end;
  put_.store(put_.load(std::memory_order_relaxed) + blocks.size(), std::memory_order_release);
  point("queue.put.held");
}

bool ItemsInFlight::release_taken(std::uint64_t head, bool may_wait) noexcept {
  if (may_wait) {
    release_before(head, 0);
  } else {
    if (!mutex_.try_lock()) return true;
    release_locked(head, 0);
  }
  return !empty();
}

/// Reads the ring's head only if it is time to look, because reading takes its cache line away from the getter.
void ItemsInFlight::release_some(Blocks blocks) noexcept {
  constexpr std::size_t kMany = 16;
  constexpr std::size_t kManyLarge = 3;  // at most every other put disturbs the getter
  const std::size_t keep = blocks == Blocks::own ? kMany : 0;
  if (size() >= keep + (blocks == Blocks::large ? kManyLarge : kMany)) release_before(ring_.head(), keep);
}

void ItemsInFlight::release_before(std::uint64_t head, std::size_t keep) noexcept {
  mutex_.lock();
  release_locked(head, keep);
}

void ItemsInFlight::release_locked(std::uint64_t head, std::size_t keep) noexcept {
  std::array<Sent, kAtOnce> taken;
  for (;; mutex_.lock()) {
    const std::size_t count = take_out(head, keep, taken);
    mutex_.unlock();  // no thread should wait for the work of the blocks' groups
    const std::span some(taken.data(), count);
    for (const Sent& item : some) as_shared(*item.group).end_transit(item.number);
    release(some);
    if (count < taken.size()) return;
  }
}

void ItemsInFlight::release(std::span<const Sent> items) noexcept {
  std::array<std::uint32_t, kAtOnce> numbers;
  while (!items.empty()) {
    std::size_t count = 0;
    for (; count < items.size() && items[count].group == items.front().group; ++count)
      numbers[count] = items[count].number;
    items.front().group->release_all({numbers.data(), count});
    items = items.subspan(count);
  }
}

std::size_t ItemsInFlight::take_out(std::uint64_t head, std::size_t keep, std::span<Sent> taken) noexcept {
  std::size_t count = 0;
  for (; count < taken.size() && size() > keep; ++count) {
    const Sent* const item = oldest();
    if (item->position >= head) break;
    taken[count] = *item;
    if (read_.index == read_.chunk->items.size()) {
      chunks_ = std::move(chunks_->next);
      read_ = {chunks_.get(), 0};
    }
    ++read_.index;
    taken_.store(taken_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  return count;
}

/// Returns the oldest block; null if there is none.
const ItemsInFlight::Sent* ItemsInFlight::oldest() const noexcept {
  if (empty()) return nullptr;
  const Chunk& chunk = *read_.chunk;
  return read_.index < chunk.items.size() ? &chunk.items[read_.index] : &chunk.next->items[0];
}

void ItemsInFlight::note_age() noexcept {
  if (!mutex_.try_lock()) return;
  const LockGuard lock(mutex_, std::adopt_lock);
  const Sent* const item = oldest();
  if (!item || item->position + 1 == oldest_) return;
  oldest_ = item->position + 1;
  oldest_since_ = std::chrono::steady_clock::now();
}

TransitInfo ItemsInFlight::info(std::string where) const {
  TransitInfo info{size(), 0, std::move(where)};
  if (!mutex_.try_lock()) return info;
  const LockGuard lock(mutex_, std::adopt_lock);
  const Sent* const item = oldest();
  if (item && item->position + 1 == oldest_)
    info.age_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - oldest_since_).count();
  return info;
}

void ItemsInFlight::clear() noexcept {
  std::array<Sent, kAtOnce> dropped;
  std::size_t count;
  do {
    const LockGuard lock(mutex_);
    count = take_out(UINT64_MAX, 0, dropped);
    release({dropped.data(), count});
    write_ = read_;
  } while (count != 0);
}

}  // namespace onecopy
