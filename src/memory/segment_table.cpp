// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <new>

#include "core/throw_error.h"
#include "memory/pool.h"
#include "os/log.h"

namespace onecopy {

SegmentTable::~SegmentTable() {
  if (!abandoned_) return;
  // The memory is kept because tensors that a forked child inherited may be used until the very end of the process.
  static auto& kept = *std::make_unique<std::vector<std::shared_ptr<DeviceMemory>>>().release();
  for (auto& [number, entry] : entries_) kept.push_back(std::move(entry.memory));
}

std::uint32_t SegmentTable::next_number() noexcept {
  const LockGuard lock(mutex_);
  return ++last_;
}

void SegmentTable::add(std::uint32_t number, Device device, std::unique_ptr<DeviceMemory> memory) {
  const DeviceIdentity& identity = identity_of(device);
  log_debug([&] {
    return fmt::format("made segment {} of {} bytes on {}", number, memory->size(), device.str());
  });
  const LockGuard lock(mutex_);
  const std::size_t most = retired_.size() + entries_.size() + 1;
  if (retired_.capacity() < most) retired_.reserve(2 * most);
  const SegmentInfo info{number, memory->kind(), identity.device, memory->size(), 0, &identity};
  entries_.emplace(number, Entry{info, std::move(memory)});
}

void SegmentTable::remove(std::uint32_t number) noexcept {
  std::shared_ptr<DeviceMemory> memory;
  {
    const LockGuard lock(mutex_);
    const auto at = entries_.find(number);
    if (at == entries_.end()) return;
    memory = std::move(at->second.memory);
    known_.forget(number);
    entries_.erase(at);
    if (on_retire) retired_.push_back(number);
  }
  memory.reset();
  log_debug([&] { return fmt::format("gave back segment {}", number); });
  tell_retired();
}

/// Calls on_retire for the retired segments. Two threads may report one segment, which is harmless: numbers are not
/// reused.
bool SegmentTable::tell_retired() noexcept {
  ReleasableLock lock(mutex_);
  while (on_retire && !retired_.empty()) {
    const std::uint32_t number = retired_.back();
    lock.unlock();
    try {
      on_retire(number);
    } catch (const std::bad_alloc&) {
      return true;
    }
    lock.lock();
    std::erase(retired_, number);
  }
  return false;
}

bool SegmentTable::give_back(std::uint32_t number, DeviceMemory& memory, std::uint64_t offset,
                             std::uint64_t bytes) noexcept {
  if (!punch(number, memory, offset, bytes)) return false;
  add_committed(number, -static_cast<std::int64_t>(bytes));
  return true;
}

bool SegmentTable::punch(std::uint32_t number, DeviceMemory& memory, std::uint64_t offset,
                         std::uint64_t bytes) noexcept {
  if (guard && !guard->begin_hole(number)) return false;
  memory.decommit(offset, bytes);
  if (guard) guard->end_hole(number);
  return true;
}

std::shared_ptr<DeviceMemory> SegmentTable::memory(std::uint32_t number) const noexcept {
  const LockGuard lock(mutex_);
  const auto at = entries_.find(number);
  return at == entries_.end() ? nullptr : at->second.memory;
}

void SegmentTable::add_committed(std::uint32_t number, std::int64_t bytes) noexcept {
  const LockGuard lock(mutex_);
  const auto at = entries_.find(number);
  if (at != entries_.end()) at->second.info.committed += static_cast<std::uint64_t>(bytes);
}

const SegmentTable::Entry& SegmentTable::entry(std::uint32_t number) const {
  const auto at = entries_.find(number);
  if (at == entries_.end())
    throw_error(ErrorCode::stale_handle,
                "segment {} is gone: its blocks were freed and its memory given back", number);
  return at->second;
}

SegmentTable::Entry SegmentTable::find(std::uint32_t number) const {
  const LockGuard lock(mutex_);
  return entry(number);
}

ExportedMemory SegmentTable::export_memory(std::uint32_t number, Access access) const {
  const Entry found = find(number);
  ExportedMemory memory = found.memory->export_memory(access);
  memory.device = found.info.identity->uuid;
  return memory;
}

std::vector<Fd> SegmentTable::export_rest(std::uint32_t number, std::size_t first) const {
  const LockGuard lock(mutex_);
  return entry(number).memory->export_rest(first);
}

std::byte* SegmentTable::allow(std::uint32_t number, int ordinal) const {
  return find(number).memory->allow(ordinal);
}

const SegmentInfo& SegmentTable::info(std::uint32_t number) const {
  if (const SegmentInfo* known = known_.find(number)) return *known;
  const LockGuard lock(mutex_);
  const SegmentInfo& info = entry(number).info;
  known_.remember(number, info);
  return info;
}

std::vector<SegmentInfo> SegmentTable::list() const {
  const LockGuard lock(mutex_);
  std::vector<SegmentInfo> infos;
  infos.reserve(entries_.size());
  for (const auto& [number, found] : entries_) infos.push_back(found.info);
  return infos;
}

void SegmentTable::remove_names() noexcept {
  const LockGuard lock(mutex_);
  for (const auto& [number, found] : entries_) found.memory->remove_name();
}

}  // namespace onecopy
