// SPDX-License-Identifier: Apache-2.0
#include "share/borrower/mapped_segments.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/point.h"
#include "core/throw_error.h"
#include "os/log.h"

namespace onecopy {
namespace {

Access other_than(Access access) noexcept {
  return access == Access::read_write ? Access::read_only : Access::read_write;
}

}  // namespace

SegmentPlace MappedSegments::find(std::uint32_t segment, Access access) {
  KnownSegments<SegmentPlace>& known = known_[static_cast<std::size_t>(access)];
  if (const SegmentPlace* place = known.find(segment)) return *place;
  const LockGuard lock(mutex_);
  const Mapped* mapped = find_mapped(segment, access);
  if (!mapped) return {};
  known.remember(segment, mapped->place);
  return mapped->place;
}

SegmentPlace MappedSegments::find_any(std::uint32_t segment, Access access) {
  if (const SegmentPlace place = find(segment, access)) return place;
  return find(segment, other_than(access));
}

bool MappedSegments::contains(std::uint32_t segment, Access access) const {
  const LockGuard lock(mutex_);
  return find_mapped(segment, access) != nullptr;
}

void MappedSegments::map(const SegmentRequest& wanted, ExportedMemory memory) {
  const DeviceIdentity& identity = identity_of(find_device(device_type(memory.kind), memory.device));
  const Device home = identity.device;
  const int ordinal = wanted.user && wanted.user->type == home.type ? wanted.user->index : home.index;
  const std::uint64_t size = memory.size;
  std::unique_ptr<DeviceMemory> mapped =
      backend(home.type).open(home.index, std::move(memory), wanted.access, ordinal);
  point("open.mapped");
  // Logged first: other threads may open tensors of the segment as soon as it is known, and log after this line.
  log_debug([&] { return fmt::format("mapped segment {}, {} bytes", wanted.segment, size); });
  const LockGuard lock(mutex_);
  if (find_mapped(wanted.segment, wanted.access)) return;  // another thread has mapped it first
  const SegmentPlace place{mapped->data(), mapped->size(), mapped->kind(), &identity, ordinal};
  mapped_[static_cast<std::size_t>(wanted.access)][wanted.segment] = {place, std::move(mapped)};
}

ExportedMemory MappedSegments::export_memory(std::uint32_t segment, Access access) const {
  const LockGuard lock(mutex_);
  const Mapped* mapped = find_mapped(segment, Access::read_write);
  if (!mapped) mapped = find_mapped(segment, Access::read_only);
  if (mapped && access == Access::read_write && mapped->memory->access() == Access::read_only &&
      !is_sealed(mapped->place.kind))
    mapped = nullptr;
  if (!mapped)
    throw_error(ErrorCode::owner_died, "segment {} of that owner is not mapped here {}", segment,
                access == Access::read_write ? "for writing" : "any more");
  ExportedMemory memory = mapped->memory->export_memory(access);
  memory.device = mapped->place.identity->uuid;
  return memory;
}

std::byte* MappedSegments::allow(std::uint32_t segment, Access access, int ordinal) {
  const LockGuard lock(mutex_);
  const Mapped* mapped = find_any_mapped(segment, access);
  return mapped ? mapped->memory->allow(ordinal) : nullptr;
}

std::shared_ptr<DeviceMemory> MappedSegments::memory(std::uint32_t segment, Access access) const noexcept {
  const LockGuard lock(mutex_);
  const Mapped* mapped = find_any_mapped(segment, access);
  return mapped ? mapped->memory : nullptr;
}

std::size_t MappedSegments::count() const {
  const LockGuard lock(mutex_);
  return mapped_[0].size() + mapped_[1].size();
}

bool MappedSegments::uses_devices() const {
  const LockGuard lock(mutex_);
  return std::any_of(mapped_.begin(), mapped_.end(), [](const Segments& known) {
    return std::any_of(known.begin(), known.end(), [](const auto& mapped) {
      return device_type(mapped.second.place.kind) != DeviceType::cpu;
    });
  });
}

bool MappedSegments::is_held() const {
  const LockGuard lock(mutex_);
  return std::ranges::any_of(mapped_, [](const Segments& known) {
    return std::ranges::any_of(known,
                               [](const auto& mapped) { return mapped.second.memory.use_count() > 1; });
  });
}

std::vector<std::uint32_t> MappedSegments::weak() const {
  const LockGuard lock(mutex_);
  std::vector<std::uint32_t> numbers;
  for (const Segments& known : mapped_)
    for (const auto& [segment, mapped] : known)
      if (is_weak(mapped.place.kind)) numbers.push_back(segment);
  return numbers;
}

void MappedSegments::retire(std::uint32_t segment) noexcept {
  std::array<Segments::node_type, 2> retired;  // unmapped without the lock
  const LockGuard lock(mutex_);
  for (std::size_t access = 0; access < 2; ++access) {
    known_[access].forget(segment);
    retired[access] = mapped_[access].extract(segment);
  }
}

void MappedSegments::close() noexcept {
  const LockGuard lock(mutex_);
  for (std::size_t access = 0; access < 2; ++access) {
    for (const auto& [segment, mapped] : mapped_[access]) known_[access].forget(segment);
    mapped_[access].clear();
  }
}

const MappedSegments::Mapped* MappedSegments::find_mapped(std::uint32_t segment,
                                                          Access access) const noexcept {
  const Segments& known = mapped_[static_cast<std::size_t>(access)];
  const auto at = known.find(segment);
  return at == known.end() ? nullptr : &at->second;
}

const MappedSegments::Mapped* MappedSegments::find_any_mapped(std::uint32_t segment,
                                                              Access access) const noexcept {
  const Mapped* mapped = find_mapped(segment, access);
  return mapped ? mapped : find_mapped(segment, other_than(access));
}

}  // namespace onecopy
