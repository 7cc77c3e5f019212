// SPDX-License-Identifier: Apache-2.0
#include "store/client/mapped_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "onecopy/core/error.h"
#include "os/memfd.h"
#include "os/mutex.h"
#include "store/format/message.h"

namespace onecopy::store {
namespace {

constexpr std::uint64_t kChunk = std::uint64_t{1} << 30;

/// The ranges of this process that are memory of the store. Thread safety: all members may be called concurrently. Never
/// destroyed: tensors live until the end.
class StoredRanges {
 public:
  static StoredRanges& all() {
    static StoredRanges* const ranges = new StoredRanges;
    return *ranges;
  }
  void add(const std::byte* begin, std::size_t bytes) {
    const LockGuard lock(mutex_);
    ends_[begin] = begin + bytes;
    count_.store(ends_.size(), std::memory_order_relaxed);
  }
  void remove(const std::byte* begin) noexcept {
    const LockGuard lock(mutex_);
    ends_.erase(begin);
    count_.store(ends_.size(), std::memory_order_relaxed);
  }
  bool has(const void* at) noexcept {
    if (count_.load(std::memory_order_relaxed) == 0) return false;
    const LockGuard lock(mutex_);
    const auto after = ends_.upper_bound(static_cast<const std::byte*>(at));
    return after != ends_.begin() && at < std::prev(after)->second;
  }

 private:
  std::atomic<std::size_t> count_{0};
  Mutex mutex_;
  std::map<const std::byte*, const std::byte*> ends_ GUARDED_BY(mutex_);
};

std::uint64_t rounded(std::uint64_t bytes, std::uint64_t unit) noexcept {
  return (bytes + unit - 1) / unit * unit;
}

std::vector<std::unique_ptr<PhysicalChunk>> make_chunks(Backend& vendor, int ordinal, std::uint64_t bytes) {
  std::uint64_t chunk = kChunk;
  while (bytes / chunk >= kMaxChunks) chunk *= 2;
  std::vector<std::unique_ptr<PhysicalChunk>> chunks;
  for (std::uint64_t left = rounded(bytes, vendor.granularity()); left != 0; left -= std::min(left, chunk))
    chunks.push_back(vendor.create_chunk(ordinal, std::min(left, chunk)));
  return chunks;
}

}  // namespace

BlockRef MappedMemory::create(Device device, std::uint64_t bytes) {
  auto chunks = make_chunks(backend(device.type), device.index, bytes);
  return {new MappedMemory(device, std::move(chunks), Access::read_write, {}), 0};
}

BlockRef MappedMemory::open(Device device, ExportedMemory memory, Client::Reading reading) {
  Chunks chunks;
  if (memory.size != 0)
    chunks = backend(device.type).import_chunks(device.index, std::move(memory), device.index);
  return {new MappedMemory(device, std::move(chunks), Access::read_only, std::move(reading)), 0};
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
  StoredRanges::all().add(data(), size_);
}

MappedMemory::~MappedMemory() {
  if (size_ != 0) StoredRanges::all().remove(data());
}

bool is_stored(const void* at) noexcept { return StoredRanges::all().has(at); }

void MappedMemory::map() {
  std::size_t at = 0;
  for (const auto& chunk : chunks_) {
    reservation_->map(at, *chunk, 0, chunk->size());
    at += chunk->size();
  }
  reservation_->allow(device_.index, 0, size_, access_);
}

/// Unmaps chunk by chunk, which is quicker for large ones.
void MappedMemory::unmap() noexcept {
  std::size_t at = 0;
  for (const auto& chunk : chunks_) {
    reservation_->unmap(at, chunk->size());
    at += chunk->size();
  }
}

/// The kernel refuses writable mappings of a sealed file, and there is none left when it is sealed.
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

void MappedMemory::show(ExportedMemory memory, Client::Reading reading) {
  if (memory.size != size_)
    throw Error(ErrorCode::bad_handle,
                fmt::format("a version of {} bytes came where {} are shown", memory.size, size_));
  Backend& vendor = backend(device_.type);
  Chunks others;
  if (size_ != 0) others = vendor.import_chunks(device_.index, std::move(memory), device_.index);
  vendor.finish_work();
  unmap();
  std::swap(chunks_, others);
  try {
    if (size_ != 0) map();
  } catch (...) {
    std::swap(chunks_, others);
    reservation_->unmap(0, size_);
    map();
    throw;
  }
  others
      .clear();  // before the reading of it ends: the guard is to be the last that has it, and takes the time to free it
  reading_ = std::move(reading);
}

ExportedMemory MappedMemory::export_chunks() const {
  if (size_ == 0) return {};
  return backend(device_.type).export_chunks(chunks_, Access::read_only);
}

}  // namespace onecopy::store
