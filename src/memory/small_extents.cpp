// SPDX-License-Identifier: Apache-2.0
#include "small_extents.h"

#include <algorithm>
#include <bit>

namespace onecopy {

namespace {

constexpr std::uint32_t kStep = 64;
constexpr std::uint32_t kSteppedUpTo = 512;
constexpr std::uint32_t kSlabBytes = 64 << 10;  // larger where that would be less than eight slots

}  // namespace

SmallExtents::SmallExtents(std::uint32_t page_bytes) : page_bytes_(page_bytes) {
  heads_.fill(kNone);
  reserves_.fill(kNone);
}

unsigned SmallExtents::class_of(std::uint64_t bytes) noexcept {
  if (bytes <= kSteppedUpTo) return static_cast<unsigned>((bytes - 1) / kStep);
  const unsigned power = static_cast<unsigned>(std::bit_width(bytes - 1)) - 1;  // 9 for 513..1024
  const auto quarter = static_cast<unsigned>((bytes - 1) >> (power - 2)) & 3;
  return 8 + (power - 9) * 4 + quarter;
}

std::uint32_t SmallExtents::slot_bytes(unsigned size_class) noexcept {
  if (size_class < 8) return (size_class + 1) * kStep;
  const unsigned power = 9 + (size_class - 8) / 4;
  return (std::uint32_t{1} << power) + ((size_class % 4) + 1) * (std::uint32_t{1} << (power - 2));
}

std::uint32_t SmallExtents::slab_pages(unsigned size_class) const noexcept {
  const std::uint32_t bytes = std::max(kSlabBytes, 8 * slot_bytes(size_class));
  return (bytes + page_bytes_ - 1) / page_bytes_;
}

std::optional<SmallExtents::Slot> SmallExtents::allocate(unsigned size_class) noexcept {
  const std::uint32_t number = heads_[size_class];
  if (number == kNone) return std::nullopt;
  Slab& slab = slabs_[number];
  std::uint32_t word = slab.hint;
  while (slab.taken[word] == ~std::uint64_t{0}) ++word;
  slab.hint = word;
  const int bit = std::countr_one(slab.taken[word]);
  slab.taken[word] |= std::uint64_t{1} << bit;
  if (slab.used++ == 0) {
    reserves_[size_class] = kNone;
    slab.idle_since.reset();
    --empty_;
  }
  if (slab.used == slab.slots) unlink(number);
  const std::uint64_t slot = word * 64 + static_cast<std::uint32_t>(bit);
  return Slot{slab.run.segment,
              std::uint64_t{slab.run.first} * page_bytes_ + slot * slot_bytes(size_class)};
}

std::uint32_t SmallExtents::add_slab(unsigned size_class, const PageRun& run) {
  Slab slab;
  slab.run = run;
  slab.size_class = size_class;
  slab.slots = run.pages * page_bytes_ / slot_bytes(size_class);
  slab.taken.assign((slab.slots + 63) / 64, 0);
  if (slab.slots % 64 != 0) slab.taken.back() = ~std::uint64_t{0} << (slab.slots % 64);

  std::uint32_t number = 0;
  if (unused_.empty()) {
    if (unused_.capacity() <= slabs_.size()) unused_.reserve(2 * slabs_.size() + 16);
    number = static_cast<std::uint32_t>(slabs_.size());
    slabs_.push_back(std::move(slab));
  } else {
    number = unused_.back();
    unused_.pop_back();
    slabs_[number] = std::move(slab);
  }
  link(number);
  reserves_[size_class] = number;
  ++empty_;
  return number;
}

SmallExtents::FreedExtent SmallExtents::free(std::uint32_t number, std::uint64_t offset) noexcept {
  Slab& slab = slabs_[number];
  const std::uint32_t bytes = slot_bytes(slab.size_class);
  const auto inside = static_cast<std::uint32_t>(offset - std::uint64_t{slab.run.first} * page_bytes_);
  const std::uint32_t slot = inside / bytes;
  const std::uint64_t mask = std::uint64_t{1} << (slot % 64);
  if (slot >= slab.slots || slot * bytes != inside || (slab.taken[slot / 64] & mask) == 0) return {};
  slab.taken[slot / 64] &= ~mask;
  slab.hint = std::min(slab.hint, slot / 64);
  if (slab.used-- == slab.slots) link(number);
  if (slab.used > 0) return {bytes, std::nullopt};
  ++empty_;
  if (reserves_[slab.size_class] != kNone) return {bytes, retire(number)};
  reserves_[slab.size_class] = number;
  return {bytes, std::nullopt};
}

std::vector<PageRun> SmallExtents::take_idle(PoolTime now, PoolTime until) {
  std::vector<PageRun> runs;
  runs.reserve(empty_);
  for (std::uint32_t& reserve : reserves_) {
    if (reserve == kNone) continue;
    Slab& slab = slabs_[reserve];
    if (!slab.idle_since) slab.idle_since = now;
    if (*slab.idle_since > until) continue;
    runs.push_back(retire(reserve));
    reserve = kNone;
  }
  return runs;
}

void SmallExtents::link(std::uint32_t number) noexcept {
  Slab& slab = slabs_[number];
  std::uint32_t& head = heads_[slab.size_class];
  slab.previous = kNone;
  slab.next = head;
  if (head != kNone) slabs_[head].previous = number;
  head = number;
}

void SmallExtents::unlink(std::uint32_t number) noexcept {
  const Slab& slab = slabs_[number];
  if (slab.previous == kNone) heads_[slab.size_class] = slab.next;
  else slabs_[slab.previous].next = slab.next;
  if (slab.next != kNone) slabs_[slab.next].previous = slab.previous;
}

PageRun SmallExtents::retire(std::uint32_t number) noexcept {
  unlink(number);
  --empty_;
  unused_.push_back(number);
  return slabs_[number].run;
}

}  // namespace onecopy
