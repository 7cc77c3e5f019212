// SPDX-License-Identifier: Apache-2.0
#include "share/borrower/mapped_segments.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/point.h"
#include "onecopy/core/error.h"
#include "os/log.h"

namespace onecopy {
namespace {

Access other_than(Access access) noexcept {
  return access == Access::read_write ? Access::read_only : Access::read_write;
}

}  // namespace

SegmentPlace MappedSegments::find(std::uint32_t segment, Access access) {
  if (!places_) return {};
  if (const SegmentPlace place = places_->find(segment, access)) return place;
  const LockGuard lock(mutex_);
  const Mapped* mapped = find_mapped(segment, access);
  if (!mapped) return {};
  const DeviceMemory& memory = *mapped->memory;
  const SegmentPlace place{memory.data(), memory.size(), memory.kind(), mapped->identity, mapped->user};
  places_->remember(segment, access, place);
  return place;
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
  Segments& known = mapped_[static_cast<std::size_t>(wanted.access)];
  if (wanted.segment >= known.size()) known.resize(wanted.segment + 1);
  if (!known[wanted.segment].memory)  // another thread may have mapped it first
    known[wanted.segment] = {std::move(mapped), &identity, ordinal};
}

ExportedMemory MappedSegments::export_memory(std::uint32_t segment, Access access) const {
  const LockGuard lock(mutex_);
  const Mapped* mapped = find_mapped(segment, Access::read_write);
  if (!mapped && access == Access::read_only) mapped = find_mapped(segment, access);
  if (!mapped)
    throw Error(ErrorCode::owner_died,
                fmt::format("segment {} of that owner is not mapped here {}", segment,
                            access == Access::read_write ? "for writing" : "any more"));
  ExportedMemory memory = mapped->memory->export_memory(access);
  memory.device = mapped->identity->uuid;
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
  std::size_t count = 0;
  for (const Segments& known : mapped_)
    count += std::count_if(known.begin(), known.end(), [](const Mapped& m) { return m.memory != nullptr; });
  return count;
}

bool MappedSegments::uses_devices() const {
  const LockGuard lock(mutex_);
  return std::any_of(mapped_.begin(), mapped_.end(), [](const Segments& known) {
    return std::any_of(known.begin(), known.end(), [](const Mapped& m) {
      return m.memory && device_type(m.memory->kind()) != DeviceType::cpu;
    });
  });
}

std::vector<std::uint32_t> MappedSegments::weak() const {
  const LockGuard lock(mutex_);
  std::vector<std::uint32_t> numbers;
  for (const Segments& known : mapped_)
    for (std::size_t segment = 0; segment < known.size(); ++segment)
      if (known[segment].memory && is_weak(known[segment].memory->kind()))
        numbers.push_back(static_cast<std::uint32_t>(segment));
  return numbers;
}

void MappedSegments::retire(std::uint32_t segment) noexcept {
  std::array<std::shared_ptr<DeviceMemory>, 2> retired;  // unmapped without the lock
  const LockGuard lock(mutex_);
  if (places_) places_->forget(segment);
  for (std::size_t access = 0; access < 2; ++access)
    if (segment < mapped_[access].size()) retired[access] = std::move(mapped_[access][segment].memory);
}

void MappedSegments::close() noexcept {
  const LockGuard lock(mutex_);
  places_.reset();
  // Frees its capacity as well, because closed peers stay.
  for (Segments& known : mapped_) known = Segments();
}

const MappedSegments::Mapped* MappedSegments::find_mapped(std::uint32_t segment,
                                                          Access access) const noexcept {
  const Segments& known = mapped_[static_cast<std::size_t>(access)];
  return segment < known.size() && known[segment].memory ? &known[segment] : nullptr;
}

const MappedSegments::Mapped* MappedSegments::find_any_mapped(std::uint32_t segment,
                                                              Access access) const noexcept {
  const Mapped* mapped = find_mapped(segment, access);
  return mapped ? mapped : find_mapped(segment, other_than(access));
}

}  // namespace onecopy
