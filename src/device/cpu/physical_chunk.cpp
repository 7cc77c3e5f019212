// SPDX-License-Identifier: Apache-2.0
#include "physical_chunk.h"

#include <sys/mman.h>

#include "core/throw_error.h"
#include "file_pages.h"
#include "memfd_memory.h"
#include "os/memfd.h"

namespace onecopy {

std::unique_ptr<PhysicalChunk> create_memfd_chunk(std::size_t bytes) {
  Fd fd = create_memfd("onecopy-chunk", bytes);
  reserve_pages({fd, nullptr, bytes, ""}, 0, bytes);
  return std::make_unique<MemfdChunk>(std::move(fd), bytes);
}

/// Populates the mapping, which forked children do not get meanwhile: a child would keep the memory from being sealed.
std::unique_ptr<PhysicalChunk> create_memfd_chunk_in(Reservation& where) {
  const std::size_t bytes = where.size();
  auto chunk = std::make_unique<MemfdChunk>(create_memfd("onecopy-chunk", bytes), bytes);
  where.map(0, *chunk, 0, bytes);
  where.allow(0, 0, bytes, Access::read_write);
  ::madvise(where.base(), bytes, MADV_DONTFORK);
  reserve_pages({chunk->fd(), where.base(), bytes, ""}, 0, bytes);
  ::madvise(where.base(), bytes, MADV_DOFORK);
  return chunk;
}

std::vector<std::unique_ptr<PhysicalChunk>> import_memfd_chunks(ExportedMemory memory) {
  std::vector<std::unique_ptr<PhysicalChunk>> chunks;
  std::uint64_t rest = memory.size;
  for (Fd& fd : memory.fds) {
    const std::uint64_t bytes = file_size(fd);
    if (memory.kind != SegmentKind::shared_file) check_memfd(fd, bytes);
    if (bytes == 0 || bytes > rest)
      throw_error(ErrorCode::bad_handle, "chunks of more than the {} bytes announced came", memory.size);
    rest -= bytes;
    chunks.push_back(std::make_unique<MemfdChunk>(std::move(fd), bytes));
  }
  if (rest != 0 || chunks.empty())
    throw_error(ErrorCode::bad_handle, "chunks of {} bytes came where {} were announced",
                memory.size - rest, memory.size);
  return chunks;
}

ExportedMemory export_memfd_chunks(std::span<const std::unique_ptr<PhysicalChunk>> chunks, Access access) {
  ExportedMemory memory;
  for (const auto& chunk : chunks) {
    const Fd& fd = static_cast<const MemfdChunk&>(*chunk).fd();
    memory.fds.push_back(access == Access::read_only ? reopen_read_only(fd) : fd.duplicate());
  }
  return memory;
}

}  // namespace onecopy
