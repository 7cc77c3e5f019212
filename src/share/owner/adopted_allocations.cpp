// SPDX-License-Identifier: Apache-2.0
#include "share/owner/adopted_allocations.h"

#include <atomic>
#include <iterator>

#include "core/throw_error.h"
#include "onecopy/share/share.h"
#include "share/owner/holds.h"
#include "share/owner/shared_blocks.h"

namespace onecopy {

namespace {

std::atomic<std::uint64_t> last_round{0};
thread_local std::uint64_t this_round = 0;

void check_view(const TensorView& view, const ForeignMemory& memory) {
  if (memory.device != view.device)
    throw_error(ErrorCode::invalid_argument, "the memory is on {}, not on {}", memory.device.str(),
                view.device.str());
}

}  // namespace

AdoptionRound::AdoptionRound() noexcept : outer_(this_round) {
  if (outer_ == 0) this_round = ++last_round;
}

AdoptionRound::~AdoptionRound() { this_round = outer_; }

Tensor AdoptedAllocations::adopt(const TensorView& view, std::shared_ptr<const void> owner) {
  const std::size_t bytes = view.layout.extent_bytes();
  if (bytes == 0) throw Error(ErrorCode::invalid_argument, "an empty tensor has no memory to share");
  const CountedSegment counted = count_block_of(view, bytes);
  auto* data = static_cast<std::byte*>(view.data);
  const Extent extent{counted.segment, static_cast<std::uint64_t>(data - counted.base), bytes, data};
  BlockRef block;
  try {
    block = ledger_.add(extent, *this);
  } catch (...) {
    free(extent);
    throw;
  }
  ledger_.keep_with(block.number(), {ObjectBlock::keep(std::move(owner))});
  return {std::move(block), view.data, view.layout, view.device, view.access};
}

AdoptedAllocations::CountedSegment AdoptedAllocations::count_block_of(const TensorView& view,
                                                                      std::size_t bytes) {
  if (const auto known = enter_known(view, bytes)) return *known;
  const ForeignMemory memory = backend(view.device.type).find_foreign(view.data, bytes);
  check_view(view, memory);
  return {enter(memory), memory.base};
}

/// Finds the segment of an allocation that was adopted before, since the driver is slow to describe one and most
/// tensors share theirs. In a round, asks the driver about each allocation only once. Returns nothing for an unknown
/// allocation.
std::optional<AdoptedAllocations::CountedSegment> AdoptedAllocations::enter_known(const TensorView& view,
                                                                                  std::size_t bytes) {
  const LockGuard lock(mutex_);
  AdoptedSegment* const known = find_known(view, bytes);
  if (!known) return {};
  known->round = this_round;
  ++known->blocks;
  return CountedSegment{known->segment, known->memory.base};
}

/// Returns the known allocation that contains the view; null if there is none. If several begin at the same address,
/// tries the longest first.
AdoptedAllocations::AdoptedSegment* AdoptedAllocations::find_known(const TensorView& view,
                                                                   std::size_t bytes) {
  auto* const data = static_cast<std::byte*>(view.data);
  auto at = by_place_.upper_bound({data, SIZE_MAX});
  if (at == by_place_.begin()) return nullptr;
  const std::byte* const base = std::prev(at)->first.first;
  while (at != by_place_.begin() && (--at)->first.first == base) {
    AdoptedSegment& known = by_segment_.at(at->second);
    const ForeignMemory& memory = known.memory;
    const auto offset = static_cast<std::size_t>(data - memory.base);
    if (memory.device != view.device || offset > memory.bytes || bytes > memory.bytes - offset) continue;
    const bool is_asked = this_round != 0 && known.round == this_round;
    if (is_asked || backend(view.device.type).is_still(memory, data)) return &known;
  }
  return nullptr;
}

/// Adds the allocation unless it is known, counts one more block in it, and returns the segment's number.
std::uint32_t AdoptedAllocations::enter(const ForeignMemory& memory) {
  const LockGuard lock(mutex_);
  const Key key{memory.base, memory.bytes};
  if (const auto at = by_place_.find(key); at != by_place_.end()) {
    AdoptedSegment& known = by_segment_.at(at->second);
    if (known.memory.identity == memory.identity) {
      ++known.blocks;
      return known.segment;
    }
    known.stale = true;
    by_place_.erase(at);
  }
  const std::uint32_t number = segments_.next_number();
  segments_.add(number, memory.device, backend(memory.device.type).adopt(memory));
  segments_.add_committed(number, static_cast<std::int64_t>(memory.bytes));
  by_segment_[number] = {memory, number, 1, {}, {}, false, 0};
  by_place_[key] = number;
  return number;
}

bool AdoptedAllocations::contains(std::uint32_t segment) const {
  const LockGuard lock(mutex_);
  return by_segment_.contains(segment);
}

void AdoptedAllocations::free(const Extent& extent) noexcept {
  bool idle = false;
  {
    const LockGuard lock(mutex_);
    const auto at = by_segment_.find(extent.segment);
    if (at == by_segment_.end()) return;
    idle = --at->second.blocks == 0;
    at->second.idle_since = std::chrono::steady_clock::now();
    at->second.ask_again = at->second.idle_since + kDecay;
  }
  if (idle && idle_) idle_();
}

bool AdoptedAllocations::has_decayed(const AdoptedSegment& idle,
                                     std::chrono::steady_clock::time_point now) noexcept {
  return idle.stale || now - kDecayWhileThere >= idle.idle_since;
}

std::chrono::steady_clock::time_point AdoptedAllocations::next_look(const AdoptedSegment& idle) noexcept {
  return std::min(idle.ask_again, idle.idle_since + kDecayWhileThere);
}

/// Returns the idle allocations about which the driver should be asked now.
std::vector<ForeignMemory> AdoptedAllocations::take_due(std::chrono::steady_clock::time_point now) {
  std::vector<ForeignMemory> due;
  const LockGuard lock(mutex_);
  for (auto& [segment, adopted] : by_segment_)
    if (adopted.blocks == 0 && !has_decayed(adopted, now) && now >= adopted.ask_again) {
      adopted.ask_again = now + kAskAgain;
      due.push_back(adopted.memory);
    }
  return due;
}

/// Asks the driver without the lock, which tensors need to be added and dropped, because the driver may be busy in
/// another thread.
void AdoptedAllocations::find_freed(std::chrono::steady_clock::time_point now) {
  for (const ForeignMemory& memory : take_due(now)) {
    if (backend(memory.device.type).is_still(memory, memory.base)) continue;
    const LockGuard lock(mutex_);
    const auto at = by_place_.find({memory.base, memory.bytes});
    if (at == by_place_.end()) continue;
    AdoptedSegment& adopted = by_segment_.at(at->second);
    if (adopted.blocks != 0 || adopted.memory.identity != memory.identity) continue;
    adopted.stale = true;
    by_place_.erase(at);
  }
}

std::optional<std::chrono::steady_clock::duration> AdoptedAllocations::sweep(
    std::chrono::steady_clock::time_point now) {
  find_freed(now);
  std::vector<std::uint32_t> gone;
  std::optional<std::chrono::steady_clock::duration> next;
  {
    const LockGuard lock(mutex_);
    for (auto at = by_segment_.begin(); at != by_segment_.end();) {
      const AdoptedSegment& adopted = at->second;
      const bool drop = adopted.blocks == 0 && has_decayed(adopted, now);
      if (adopted.blocks == 0 && !drop)
        next = std::min(next.value_or(kDecayWhileThere), next_look(adopted) - now);
      if (!drop) {
        ++at;
        continue;
      }
      if (!adopted.stale) by_place_.erase({adopted.memory.base, adopted.memory.bytes});
      gone.push_back(adopted.segment);
      at = by_segment_.erase(at);
    }
  }
  for (const std::uint32_t segment : gone) segments_.remove(segment);
  return next;
}

}  // namespace onecopy
