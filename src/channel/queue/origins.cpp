// SPDX-License-Identifier: Apache-2.0
#include "channel/queue/origins.h"

#include <fmt/format.h>

#include "onecopy/core/error.h"
#include "share/session.h"

namespace onecopy {

namespace {
constexpr std::size_t kPage = 4096;
}

struct OriginTable::Head {
  std::uint64_t channel;
  std::atomic<std::uint32_t> count;
};

struct OriginTable::Entry {
  ProcessId owner;
  ProcessId maker;
  std::uint64_t segment_size;
  std::uint32_t segment;
  std::uint8_t kind;
  std::uint8_t read_only;
  Uuid device;
  std::uint8_t reserved[2];
};

OriginTable::OriginTable(Ring& ring) noexcept : ring_(ring) {
  static_assert(sizeof(Entry) == 64 && kPage + (kCapacity + 1) * sizeof(Entry) == kExtraBytes);
}

OriginTable::Head& OriginTable::head() const noexcept { return *reinterpret_cast<Head*>(ring_.extra()); }

OriginTable::Entry* OriginTable::entries() const noexcept {
  return reinterpret_cast<Entry*>(ring_.extra() + kPage);
}

std::uint64_t OriginTable::channel() const noexcept { return head().channel; }

void OriginTable::set_channel(std::uint64_t channel) {
  ring_.reserve_extra(0, kPage);
  head().channel = channel;
}

std::optional<std::uint16_t> OriginTable::append(const Origin& origin) {
  const std::uint32_t index = head().count.load();
  if (index >= kCapacity) return {};
  if (index % (kPage / sizeof(Entry)) == 0) ring_.reserve_extra(kPage + index * sizeof(Entry), kPage);
  entries()[index] = {origin.owner,
                      origin.maker,
                      origin.segment_size,
                      origin.segment,
                      static_cast<std::uint8_t>(origin.kind),
                      origin.access == Access::read_only,
                      origin.device,
                      {}};
  point("queue.origin.written");
  head().count.store(index + 1);
  point("queue.origin.counted");
  return static_cast<std::uint16_t>(index);
}

Origin OriginTable::read(std::uint16_t index) const {
  const Subject subject{"item's origin"};
  if (index >= head().count.load() || index >= kCapacity)
    refuse(subject, fmt::format("is number {} of {}", index, head().count.load()));
  Entry entry;
  copy_once(&entry, reinterpret_cast<const std::byte*>(entries() + index), sizeof entry);
  const DeviceType type = device_type(static_cast<SegmentKind>(entry.kind));
  check_segment(subject, static_cast<std::uint8_t>(type), entry.device, entry.kind, entry.segment,
                entry.segment_size);
  return {entry.owner,
          entry.maker,
          entry.segment_size,
          entry.segment,
          static_cast<SegmentKind>(entry.kind),
          entry.read_only ? Access::read_only : Access::read_write,
          entry.device};
}

}  // namespace onecopy
