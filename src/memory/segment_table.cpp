// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "onecopy/core/error.h"
#include "onecopy/memory/pool.h"

namespace onecopy {

namespace {

SegmentInfo describe(std::uint32_t number, const DeviceIdentity& identity, const DeviceMemory& memory,
                     std::uint64_t committed) {
  return {number, memory.kind(), identity.device, memory.size(), committed, &identity};
}

}  // namespace

SegmentTable::~SegmentTable() {
  if (!abandoned_) return;
  // Tensors that a forked child inherited may be used until the very end of the process.
  static auto& kept = *std::make_unique<std::vector<std::unique_ptr<DeviceMemory>>>().release();
  for (auto& [number, entry] : entries_) kept.push_back(std::move(entry.memory));
}

std::uint32_t SegmentTable::next_number() noexcept {
  const std::lock_guard lock(mutex_);
  return ++last_;
}

void SegmentTable::add(std::uint32_t number, Device device, std::unique_ptr<DeviceMemory> memory) {
  const DeviceIdentity& identity = identity_of(device);
  const std::lock_guard lock(mutex_);
  entries_.emplace(number, Entry{&identity, std::move(memory), 0});
}

void SegmentTable::remove(std::uint32_t number) {
  std::unique_ptr<DeviceMemory> memory;
  {
    const std::lock_guard lock(mutex_);
    const auto at = entries_.find(number);
    if (at == entries_.end()) return;
    memory = std::move(at->second.memory);
    entries_.erase(at);
  }
  memory.reset();
  if (on_retire) on_retire(number);
}

void SegmentTable::add_committed(std::uint32_t number, std::int64_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  const auto at = entries_.find(number);
  if (at != entries_.end()) at->second.committed += static_cast<std::uint64_t>(bytes);
}

const SegmentTable::Entry& SegmentTable::entry(std::uint32_t number) const {
  const auto at = entries_.find(number);
  if (at == entries_.end())
    throw Error(ErrorCode::stale_handle,
                fmt::format("segment {} is gone: its blocks were freed and its memory given back", number));
  return at->second;
}

ExportedMemory SegmentTable::export_memory(std::uint32_t number, Access access) const {
  const std::lock_guard lock(mutex_);
  const Entry& found = entry(number);
  ExportedMemory memory = found.memory->export_memory(access);
  memory.device = found.identity->uuid;
  return memory;
}

std::byte* SegmentTable::allow(std::uint32_t number, int ordinal) const {
  std::lock_guard lock(mutex_);
  return entry(number).memory->allow(ordinal);
}

SegmentInfo SegmentTable::info(std::uint32_t number) const {
  const std::lock_guard lock(mutex_);
  const Entry& found = entry(number);
  return describe(number, *found.identity, *found.memory, found.committed);
}

std::vector<SegmentInfo> SegmentTable::list() const {
  const std::lock_guard lock(mutex_);
  std::vector<SegmentInfo> infos;
  infos.reserve(entries_.size());
  for (const auto& [number, found] : entries_)
    infos.push_back(describe(number, *found.identity, *found.memory, found.committed));
  return infos;
}

}  // namespace onecopy
