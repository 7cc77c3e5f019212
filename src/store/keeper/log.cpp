// SPDX-License-Identifier: Apache-2.0
#include "store/keeper/log.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/point.h"
#include "onecopy/core/error.h"
#include "os/memfd.h"

namespace onecopy::store {
namespace {

/// The fields before each record.
struct RecordHead {
  std::uint32_t size;  ///< the size of the record; 0 if there is no record yet
  std::uint32_t crc;
};

std::size_t padded(std::size_t bytes) noexcept { return (bytes + 7) / 8 * 8; }

}  // namespace

Log::Log(Fd fd, std::size_t capacity)
    : fd_(std::move(fd)), mapping_(Mapping::of(fd_, capacity, Access::read_write)) {
  catch_up();
}

void Log::catch_up() noexcept {
  for (ByteSpan record = at(end_); !record.empty(); record = at(end_))
    end_ += sizeof(RecordHead) + padded(record.size());
}

Log Log::create(std::size_t capacity) { return {create_memfd("onecopy-store-index", capacity), capacity}; }

Log Log::open(Fd fd) {
  const std::uint64_t size = file_size(fd);
  if (size < sizeof(RecordHead) || size % sizeof(RecordHead) != 0 || (seals_of(fd) & kSealShrink) == 0)
    throw Error(ErrorCode::bad_handle, "the descriptor of the store's index is not an index");
  return {std::move(fd), size};
}

bool Log::append(const Record& record) {
  const Bytes bytes = encode(record);
  if (sizeof(RecordHead) + padded(bytes.size()) > capacity() - end_) return false;
  std::byte* const head = mapping_.data() + end_;
  std::memcpy(head + sizeof(RecordHead), bytes.data(), bytes.size());
  mapping_.as<RecordHead>(end_)->crc = crc32c(bytes);
  point("store.index.written");
  std::atomic_ref(mapping_.as<RecordHead>(end_)->size)
      .store(static_cast<std::uint32_t>(bytes.size()), std::memory_order_release);
  point("store.index.committed");
  end_ += sizeof(RecordHead) + padded(bytes.size());
  return true;
}

ByteSpan Log::at(std::size_t offset) const noexcept {
  if (offset + sizeof(RecordHead) > capacity()) return {};
  const RecordHead head = *mapping_.as<RecordHead>(offset);
  if (head.size == 0 || head.size > capacity() - offset - sizeof(RecordHead)) return {};
  const ByteSpan record(mapping_.data() + offset + sizeof(RecordHead), head.size);
  return crc32c(record) == head.crc ? record : ByteSpan();
}

void Log::for_each(const std::function<void(const Record&)>& look) const {
  std::size_t offset = 0;
  for (ByteSpan record = at(0); !record.empty(); record = at(offset)) {
    look(decode_record(record));
    offset += sizeof(RecordHead) + padded(record.size());
  }
}

}  // namespace onecopy::store
