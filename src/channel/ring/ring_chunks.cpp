// SPDX-License-Identifier: Apache-2.0
#include "channel/ring/ring_chunks.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "core/point.h"
#include "core/throw_error.h"
#include "os/memory_limit.h"

namespace onecopy {

RingChunks::RingChunks(int fd, const Mapping& memory, RingGeometry geometry) noexcept
    : fd_(fd),
      geometry_(geometry),
      mask_(geometry.max_chunks() - 1),
      count_(memory.as<RingHeader>()->chunks),
      directory_(memory.as<std::atomic<std::uint32_t>>(geometry.directory())),
      owners_(memory.as<std::atomic<std::uint64_t>>(geometry.owners())),
      slots_(memory.as<RingSlot>(geometry.chunk(0))) {}

void RingChunks::throw_damaged(const char* what, std::uint64_t value) {
  throw_error(ErrorCode::protocol,
              "the queue's shared memory is damaged ({} {}): some process wrote over it; make a new queue",
              what, value);
}

RingSlot* RingChunks::assign(std::uint64_t tail, std::uint64_t head) {
  const std::uint64_t logical = tail / kItemsPerChunk;
  if (head > tail || logical - head / kItemsPerChunk > max_chunks()) throw_damaged("head", head);
  trim_if_shallow(tail, head);
  reserve_directory(logical);
  const std::uint32_t physical = find_free(head / kItemsPerChunk);
  // The directory is written first: its entry has no effect until the owner is stored, and until then the chunk is
  // free.
  directory_[logical & mask_].store(physical);
  point("ring.chunk.listed");
  owners_[physical].store(logical + 1);
  point("ring.chunk.assigned");
  return slots_ + physical * kItemsPerChunk + tail % kItemsPerChunk;
}

std::uint32_t RingChunks::find_free(std::uint64_t head_chunk) {
  const std::uint32_t count = count_.load();
  if (count > max_chunks()) throw_damaged("chunk count", count);
  std::uint32_t hole = count;
  for (std::uint32_t p = 0; p < count; ++p) {
    const std::uint64_t owner = owners_[p].load();
    if (owner <= head_chunk) return p;
    if (owner == kHole) hole = std::min(hole, p);
  }
  if (hole == count) return grow(count);
  reserve(hole, 1);
  return hole;
}

/// Adds memory at the end. Returns the first new chunk.
std::uint32_t RingChunks::grow(std::uint32_t count) {
  const auto room = static_cast<std::uint32_t>(max_chunks() - count);
  if (room == 0) {
    throw_error(ErrorCode::out_of_memory,
                "the queue holds {} chunks of {} items, all its address range of {} MiB: take items out, "
                "bound it with maxsize, or make it with a larger range, which a limit of address space "
                "(RLIMIT_AS, `ulimit -v`) reduces",
                count, kItemsPerChunk, geometry_.size() >> 20);
  }
  std::uint32_t more = std::min(room, std::clamp(count / 8, 1U, 16U));
  try {
    reserve(count, more);
  } catch (const Error&) {
    if (more == 1) throw;
    more = 1;
    reserve(count, more);
  }
  point("ring.chunk.reserved");
  // Marks that a trim left behind when its caller died would never be found again.
  for (std::uint32_t p = count; p < count + more; ++p) owners_[p].store(0);
  count_.store(count + more);
  point("ring.chunk.counted");
  return count;
}

void RingChunks::reserve(std::uint32_t first, std::uint32_t chunks) {
  require_memory(chunks * kChunkBytes);
  reserve_bytes(geometry_.owners() + first * sizeof(*owners_), chunks * sizeof(*owners_));
  reserve_bytes(geometry_.chunk(first), chunks * kChunkBytes);
}

void RingChunks::reserve_directory(std::uint64_t logical) {
  constexpr std::uint64_t kEntriesPerPage = RingGeometry::kPage / sizeof(*directory_);
  if (logical > mask_ || logical % kEntriesPerPage != 0) return;
  reserve_bytes(geometry_.directory() + logical * sizeof(*directory_), RingGeometry::kPage);
}

void RingChunks::reserve_bytes(std::size_t offset, std::size_t size) {
  while (::fallocate(fd_, 0, static_cast<off_t>(offset), static_cast<off_t>(size)) != 0) {
    if (errno == EINTR) continue;
    throw_errno(fmt::format("cannot reserve {} KiB of memory for more items in the queue", size >> 10),
                errno);
  }
}

void RingChunks::trim_if_shallow(std::uint64_t tail, std::uint64_t head) noexcept {
  constexpr std::uint32_t kShallowLooks = 16;
  const std::uint64_t used = tail / kItemsPerChunk - head / kItemsPerChunk + 1;
  shallow_ = used * 4 < count() ? shallow_ + 1 : 0;
  if (shallow_ < kShallowLooks) return;
  shallow_ = 0;
  trim(head, static_cast<std::uint32_t>(used * 2));
}

void RingChunks::trim(std::uint64_t head, std::uint32_t keep) noexcept {
  constexpr std::uint32_t kMaxAtOnce = 256;
  const auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(count_.load(), max_chunks()));
  const auto drained = [&](std::uint32_t p) { return owners_[p].load() <= head / kItemsPerChunk; };
  std::uint32_t punched = 0;
  for (std::uint32_t p = 0; p < count && punched < kMaxAtOnce; ++p) {
    if (owners_[p].load() == kHole) continue;
    if (keep > 0) {
      --keep;
      continue;
    }
    std::uint32_t end = p;
    // The mark is written first: a hole is reserved again before its use, so no chunk is written to without memory.
    for (; end < count && end - p < kMaxAtOnce && drained(end); ++end) owners_[end].store(kHole);
    if (end == p) continue;
    point("ring.trim.marked");
    punch(p, end - p);
    point("ring.trim.punched");
    punched += end - p;
    p = end;
  }
  std::uint32_t left = count;
  while (left > 0 && owners_[left - 1].load() == kHole) --left;
  if (left != count) count_.store(left);
  point("ring.trim.counted");
}

void RingChunks::punch(std::uint32_t first, std::uint32_t chunks) noexcept {
  ::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(geometry_.chunk(first)),
              static_cast<off_t>(chunks * kChunkBytes));
}

std::uint32_t RingChunks::committed() const noexcept {
  const auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(count_.load(), max_chunks()));
  std::uint32_t chunks = 0;
  for (std::uint32_t p = 0; p < count; ++p) chunks += owners_[p].load() != kHole;
  return chunks;
}

}  // namespace onecopy
