// SPDX-License-Identifier: Apache-2.0
#include "channel/codec/segment_directory.h"

#include <fmt/format.h>

namespace onecopy {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::uint32_t kHalfAt = 32'768;  ///< the index at which the second half begins
constexpr std::uint32_t kSleeps = 1;
constexpr std::uint32_t kEndsWithProducers = 2;
constexpr std::uint32_t kHasHadProducer = 4;

}  // namespace

struct SegmentDirectory::Head {
  std::uint64_t queue;
  std::atomic<std::uint64_t> state;
  /// The number of items, for each half, that were put before the half's epoch ended.
  std::atomic<std::uint64_t> put_at_end[2];
  std::atomic<std::uint32_t> options;
};

struct SegmentDirectory::PackedEntry {
  ProcessId owner;
  ProcessId maker;
  std::uint64_t segment_size;
  std::uint32_t segment;
  std::uint8_t kind;
  std::uint8_t read_only;
  Uuid device;
  std::uint8_t reserved[2];
};

SegmentDirectory::SegmentDirectory(Ring& ring) noexcept : ring_(ring), state_(&head().state) {
  static_assert(sizeof(PackedEntry) == 64 &&
                kPage + std::size_t{2} * kHalfAt * sizeof(PackedEntry) == kExtraBytes);
  static_assert(kHalfAt + kHalf == kIndices && kHalfAt * sizeof(PackedEntry) % kPage == 0);
}

SegmentDirectory::Head& SegmentDirectory::head() const noexcept {
  return *reinterpret_cast<Head*>(ring_.extra());
}

SegmentDirectory::PackedEntry& SegmentDirectory::packed(std::uint16_t index) const noexcept {
  return reinterpret_cast<PackedEntry*>(ring_.extra() + kPage)[index];
}

std::uint64_t SegmentDirectory::queue() const noexcept { return head().queue; }

bool SegmentDirectory::sleeps() const noexcept { return (head().options & kSleeps) != 0; }

bool SegmentDirectory::ends_with_producers() const noexcept {
  return (head().options & kEndsWithProducers) != 0;
}

void SegmentDirectory::note_producer() noexcept { head().options |= kHasHadProducer; }

bool SegmentDirectory::has_had_producer() const noexcept { return (head().options & kHasHadProducer) != 0; }

void SegmentDirectory::describe(std::uint64_t queue, bool sleeps, bool ends_with_producers) {
  ring_.reserve_extra(0, kPage);
  head().queue = queue;
  head().options = (sleeps ? kSleeps : 0) | (ends_with_producers ? kEndsWithProducers : 0);
}

/// Returns whether the next epoch may begin: all items that name entries of the previous epoch have been taken.
bool SegmentDirectory::may_turn(std::uint32_t epoch) const noexcept {
  return epoch == 0 || ring_.head() >= head().put_at_end[(epoch - 1) & 1].load();
}

bool SegmentDirectory::has_room() const noexcept {
  const std::uint64_t now = state().load();
  return count_in(now) < kHalf || may_turn(epoch_in(now));
}

/// Begins the next epoch in the other half. REQUIRES: may_turn().
std::uint64_t SegmentDirectory::turn(std::uint32_t epoch) {
  head().put_at_end[epoch & 1].store(ring_.put_count());
  point("queue.segment.ended");
  const std::uint64_t next = static_cast<std::uint64_t>(epoch + 1) << 32;
  state().store(next);
  point("queue.segment.turned");
  return next;
}

std::optional<std::uint16_t> SegmentDirectory::append(const SegmentOrigin& segment, Access access) {
  std::uint64_t now = state().load();
  if (count_in(now) >= kHalf) {
    if (!may_turn(epoch_in(now))) return {};
    now = turn(epoch_in(now));
  }
  const std::uint32_t index = (epoch_in(now) & 1) * kHalfAt + count_in(now);
  if (index % (kPage / sizeof(PackedEntry)) == 0)
    ring_.reserve_extra(kPage + index * sizeof(PackedEntry), kPage);
  packed(static_cast<std::uint16_t>(index)) = {segment.owner,
                                               segment.maker,
                                               segment.segment_size,
                                               segment.segment,
                                               static_cast<std::uint8_t>(segment.kind),
                                               access == Access::read_only,
                                               segment.device,
                                               {}};
  point("queue.segment.written");
  state().store(now + 1);
  point("queue.segment.counted");
  return static_cast<std::uint16_t>(index);
}

std::uint32_t SegmentDirectory::epoch_of(std::uint16_t index, std::uint64_t state) noexcept {
  const std::uint32_t epoch = epoch_in(state);
  return ((epoch & 1) == index / kHalfAt) ? epoch : epoch - 1;
}

std::uint32_t SegmentDirectory::epoch_of(std::uint16_t index) const noexcept {
  return epoch_of(index, state().load(std::memory_order_acquire));
}

bool SegmentDirectory::is_there(std::uint16_t index, std::uint64_t state) const noexcept {
  const std::uint32_t epoch = epoch_in(state);
  const std::uint32_t entries = epoch_of(index, state) == epoch ? count_in(state) : epoch == 0 ? 0 : kHalf;
  return index % kHalfAt < entries && index % kHalfAt < kHalf;
}

/// Reads an entry. If its half begins anew during the read, the item that named the entry was taken by another getter.
SegmentDirectory::Entry SegmentDirectory::read(std::uint16_t index) const {
  const Subject subject{"item's segment"};
  const std::uint64_t before = state().load();
  if (!is_there(index, before)) refuse(subject, "is entry {} of {}", index, count_in(before));
  PackedEntry entry;
  copy_once(&entry, reinterpret_cast<const std::byte*>(&packed(index)), sizeof entry);
  const std::uint32_t epoch = epoch_of(index, before);
  if (epoch_of(index) != epoch) refuse(subject, "is entry {}, which is gone", index);
  const auto kind = static_cast<SegmentKind>(entry.kind);
  check_segment(subject, static_cast<std::uint8_t>(device_type(kind)), entry.device, entry.kind,
                entry.segment, entry.segment_size);
  return {
      {entry.owner, entry.maker, device_type(kind), entry.device, entry.segment, kind, entry.segment_size},
      entry.read_only ? Access::read_only : Access::read_write,
      epoch};
}

}  // namespace onecopy
