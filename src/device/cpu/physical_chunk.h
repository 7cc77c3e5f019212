// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "device/backend.h"
#include "device/reservation.h"

namespace onecopy {

/// The pages of a memfd, all reserved from the beginning. Thread safety: see PhysicalChunk.
class MemfdChunk final : public PhysicalChunk {
 public:
  MemfdChunk(Fd fd, std::size_t bytes) noexcept : fd_(std::move(fd)), bytes_(bytes) {}

  std::size_t size() const noexcept override { return bytes_; }
  const Fd& fd() const noexcept { return fd_; }

 private:
  const Fd fd_;
  const std::size_t bytes_;
};

std::unique_ptr<PhysicalChunk> create_memfd_chunk(std::size_t bytes);
std::unique_ptr<PhysicalChunk> create_memfd_chunk_in(Reservation& where);
std::vector<std::unique_ptr<PhysicalChunk>> import_memfd_chunks(ExportedMemory memory);
ExportedMemory export_memfd_chunks(std::span<const std::unique_ptr<PhysicalChunk>> chunks, Access access);

}  // namespace onecopy
