// SPDX-License-Identifier: Apache-2.0
#include "store/client/mapped_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "device/pinned_ranges.h"
#include "onecopy/core/error.h"
#include "os/memfd.h"
#include "os/mutex.h"
#include "os/page_tables.h"
#include "share/session.h"
#include "store/format/message.h"

namespace onecopy::store {
namespace {

/// The ranges of this process that are memory of the store. Thread safety: all members may be called concurrently. Never
/// destroyed: tensors live until the end.
class StoredRanges {
 public:
  static StoredRanges& all() {
    static StoredRanges* const ranges = new StoredRanges;
    return *ranges;
  }
  void add(MappedMemory& memory) {
    const LockGuard lock(mutex_);
    ranges_[memory.data()] = &memory;
    count_.store(ranges_.size(), std::memory_order_relaxed);
  }
  void remove(const MappedMemory& memory) noexcept {
    const LockGuard lock(mutex_);
    ranges_.erase(memory.data());
    count_.store(ranges_.size(), std::memory_order_relaxed);
  }
  bool has(const void* at) noexcept {
    if (count_.load(std::memory_order_relaxed) == 0) return false;
    const LockGuard lock(mutex_);
    return find_locked(at) != nullptr;
  }
  BlockRef find(const void* at) noexcept {
    if (count_.load(std::memory_order_relaxed) == 0) return {};
    const LockGuard lock(mutex_);
    MappedMemory* const memory = find_locked(at);
    return memory && memory->try_retain() ? BlockRef(memory, 0) : BlockRef();
  }

 private:
  MappedMemory* find_locked(const void* at) REQUIRES(mutex_) {
    const auto after = ranges_.upper_bound(static_cast<const std::byte*>(at));
    if (after == ranges_.begin()) return nullptr;
    MappedMemory* const before = std::prev(after)->second;
    return at < before->data() + before->size() ? before : nullptr;
  }

  std::atomic<std::size_t> count_{0};
  Mutex mutex_;
  std::map<const std::byte*, MappedMemory*> ranges_ GUARDED_BY(mutex_);  ///< by their first address
};

}  // namespace

std::uint64_t MappedMemory::size_for(Device device, std::uint64_t bytes) {
  const std::uint64_t unit = backend(device.type).granularity();
  return (bytes + unit - 1) / unit * unit;
}

BlockRef MappedMemory::create(Device device, std::uint64_t bytes) {
  Chunks chunks;
  if (bytes != 0)
    chunks.push_back(backend(device.type).create_chunk(device.index, size_for(device, bytes)));
  return {new MappedMemory(device, std::move(chunks), Access::read_write, {}), 0};
}

BlockRef MappedMemory::open(Device device, std::vector<ExportedMemory> parts, Client::Reading reading,
                            Access access) {
  return {new MappedMemory(device, import(device, std::move(parts)), access, std::move(reading)), 0};
}

MappedMemory::Chunks MappedMemory::import(Device device, std::vector<ExportedMemory> parts) {
  Chunks chunks;
  for (ExportedMemory& part : parts)
    std::ranges::move(backend(device.type).import_chunks(device.index, std::move(part), device.index),
                      std::back_inserter(chunks));
  return chunks;
}

MappedMemory::MappedMemory(Device device, Chunks chunks, Access access, Client::Reading reading)
    : BlockGroup(false),
      device_(device),
      reading_(std::move(reading)),
      chunks_(std::move(chunks)),
      access_(access) {
  for (const auto& chunk : chunks_) size_ += chunk->size();
  if (size_ == 0) return;
  reservation_ = backend(device.type).reserve(device.index, size_);
  map();
  StoredRanges::all().add(*this);
}

MappedMemory::~MappedMemory() {
  if (size_ != 0) StoredRanges::all().remove(*this);
  if (PinnedRanges::any()) PinnedRanges::get().unpin(data());
}

void MappedMemory::populate() const {
  if (device_ == kCpu && size_ != 0) PageTableFiller(data(), size_, PageTableFiller::kAbsent).help();
}

void MappedMemory::pin() const { Session::current().pin_memory(data(), size_, access_); }

bool is_stored(const void* at) noexcept { return StoredRanges::all().has(at); }
Tensor stored_tensor(void* at, const Layout& layout) {
  BlockRef block = MappedMemory::find(at);
  if (!block) return {};
  const auto& memory = *static_cast<const MappedMemory*>(block.group());
  return {std::move(block), at, layout, memory.device(), memory.access()};
}

BlockRef MappedMemory::find(const void* at) noexcept { return StoredRanges::all().find(at); }

void MappedMemory::map() {
  std::size_t at = 0;
  for (const auto& chunk : chunks_) {
    reservation_->map(at, *chunk, 0, chunk->size());
    at += chunk->size();
  }
  reservation_->allow(device_.index, 0, size_, access_);
}

/// Unmaps the chunks one by one, which is quicker for large chunks.
void MappedMemory::unmap() noexcept {
  std::size_t at = 0;
  for (const auto& chunk : chunks_) {
    reservation_->unmap(at, chunk->size());
    at += chunk->size();
  }
}

/// Unmaps the memory, seals its files and maps them read-only: the kernel refuses new writable mappings of a sealed
/// file, and no old one is left.
void MappedMemory::protect() {
  if (access_ == Access::read_only) return;
  access_ = Access::read_only;
  if (size_ == 0) return;
  Backend& vendor = backend(device_.type);
  vendor.finish_work();
  unmap();
  if (device_ == kCpu)
    for (const Fd& fd : vendor.export_chunks(chunks_, Access::read_write).fds)
      add_seals(fd, kSealFutureWrite);
  map();
}

void MappedMemory::show(std::vector<ExportedMemory> parts, Client::Reading reading, StepTimes& steps) {
  Chunks others = import(device_, std::move(parts));
  std::uint64_t bytes = 0;
  for (const auto& chunk : others) bytes += chunk->size();
  if (bytes != size_)
    throw Error(ErrorCode::bad_handle,
                fmt::format("a version of {} bytes came where {} are shown", bytes, size_));
  steps.end("import");
  backend(device_.type).finish_work();
  steps.end("work");
  unmap();
  steps.end("unmap");
  std::swap(chunks_, others);
  try {
    if (size_ != 0) map();
  } catch (...) {
    std::swap(chunks_, others);
    reservation_->unmap(0, size_);
    map();
    throw;
  }
  steps.end("map");
  // Unmapped before the keeper is told, so that the guard is the last process that has the memory and spends the time
  // to free it.
  others.clear();
  reading_ = std::move(reading);
  steps.end("release");
}

ExportedMemory MappedMemory::export_chunks(Access access) const {
  if (size_ == 0) return {};
  ExportedMemory memory = backend(device_.type).export_chunks(chunks_, access);
  memory.kind = backend(device_.type).traits().kind;
  memory.size = size_;
  return memory;
}

}  // namespace onecopy::store
