// SPDX-License-Identifier: Apache-2.0
#include "device/pinned_ranges.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "core/throw_error.h"
#include "device/backend.h"

namespace onecopy {

namespace {

/// The ranges of this process, never destroyed, because memory with static lifetime is copied as well. A forked child
/// makes its own, without locks that a thread of the parent held.
std::atomic<PinnedRanges*> of_this_process{nullptr};

void check_pages(std::uintptr_t at, std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  if (bytes == 0 || at % page != 0 || bytes % page != 0)
    throw_error(ErrorCode::invalid_argument, "whole pages of {} bytes are pinned, not {} bytes at {:#x}",
                page, bytes, at);
}

}  // namespace

const ForkHook PinnedRanges::kForkHook{ForkRank::devices, {.in_child = [] {
                                         of_this_process.store(nullptr);
                                         any_.store(false);
                                         leaving_begin_.store(0);
                                       }}};

PinnedRanges& PinnedRanges::get() {
  PinnedRanges* found = of_this_process.load();
  if (found) [[likely]]
    return *found;
  auto* const made = new PinnedRanges;
  if (of_this_process.compare_exchange_strong(found, made)) return *made;
  delete made;
  return *found;
}

void PinnedRanges::pin(Device device, void* at, std::size_t bytes, Access access) {
  const auto begin = reinterpret_cast<Address>(at);
  check_pages(begin, bytes);
  const LockGuard changing(changes_);
  add(begin, {bytes, device});
  try {
    backend(device.type).pin_host(device.index, at, bytes, access);
  } catch (...) {
    remove(begin);
    throw;
  }
  const WriterLock lock(mutex_);
  ranges_.at(begin).is_pinned = true;
  bytes_ += bytes;
  any_ = true;
}

void PinnedRanges::add(Address at, const Range& range) {
  const WriterLock lock(mutex_);
  const auto next = ranges_.lower_bound(at);
  if (find(at) != ranges_.end() || (next != ranges_.end() && next->first - at < range.bytes))
    throw_error(ErrorCode::invalid_argument, "some of these {} bytes are pinned already: unpin them first",
                range.bytes);
  ranges_.emplace(at, range);
}

void PinnedRanges::remove(Address at) noexcept {
  const WriterLock lock(mutex_);
  ranges_.erase(at);
  if (ranges_.empty()) any_ = false;
}

void PinnedRanges::unpin(void* at) noexcept {
  const LockGuard changing(changes_);
  unpin_now(at);
}

bool PinnedRanges::unpin_unused(void* at, const std::function<bool()>& is_used) noexcept {
  const LockGuard changing(changes_);
  announce(at);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const bool goes = !is_used();
  if (goes) unpin_now(at);
  leaving_begin_ = 0;
  return goes;
}

/// Announces the range. The end is written first, so that a reader that sees the beginning sees the end as well.
void PinnedRanges::announce(void* at) noexcept {
  const auto begin = reinterpret_cast<Address>(at);
  const ReaderLock lock(mutex_);
  const auto found = ranges_.find(begin);
  if (found == ranges_.end()) return;
  leaving_end_ = begin + found->second.bytes;
  leaving_begin_ = begin;
}

void PinnedRanges::unpin_now(void* at) noexcept {
  const auto begin = reinterpret_cast<Address>(at);
  Range gone{};
  {
    const WriterLock lock(mutex_);
    const auto found = ranges_.find(begin);
    if (found == ranges_.end()) return;
    found->second.is_pinned = false;
    gone = found->second;
  }
  backend(gone.device.type).unpin_host(gone.device.index, at);
  bytes_ -= gone.bytes;
  remove(begin);
}

PinnedRanges::Ranges::const_iterator PinnedRanges::find(Address at) const noexcept {
  const auto after = ranges_.upper_bound(at);
  if (after == ranges_.begin()) return ranges_.end();
  const auto before = std::prev(after);
  return at - before->first < before->second.bytes ? before : ranges_.end();
}

bool PinnedRanges::is_pinned(const void* at, std::size_t bytes) const noexcept {
  const auto begin = reinterpret_cast<Address>(at);
  const ReaderLock lock(mutex_);
  const auto found = find(begin);
  return found != ranges_.end() && found->second.is_pinned &&
         bytes <= found->first + found->second.bytes - begin;
}

bool PinnedRanges::touches(const void* at, std::size_t bytes) const noexcept {
  const auto begin = reinterpret_cast<Address>(at);
  const ReaderLock lock(mutex_);
  if (const auto found = find(begin); found != ranges_.end()) return true;
  const auto next = ranges_.upper_bound(begin);
  return next != ranges_.end() && next->first - begin < bytes;
}

std::size_t PinnedRanges::one_copy(const void* at, std::size_t bytes) const noexcept {
  const auto begin = reinterpret_cast<Address>(at);
  const ReaderLock lock(mutex_);
  if (const auto found = find(begin); found != ranges_.end())
    return std::min(bytes, found->first + found->second.bytes - begin);
  const auto next = ranges_.upper_bound(begin);
  return next == ranges_.end() ? bytes : std::min<std::size_t>(bytes, next->first - begin);
}

}  // namespace onecopy
