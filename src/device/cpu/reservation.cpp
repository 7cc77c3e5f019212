// SPDX-License-Identifier: Apache-2.0
#include "reservation.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>

#include "onecopy/core/error.h"
#include "physical_chunk.h"

namespace onecopy {

namespace {

constexpr int kNothing = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

}  // namespace

HostReservation::HostReservation(std::size_t bytes) : bytes_(bytes) {
  void* const base = ::mmap(nullptr, bytes, PROT_NONE, kNothing, -1, 0);
  if (base == MAP_FAILED)
    throw_errno(fmt::format("cannot reserve {} bytes of addresses", bytes), errno,
                ErrorCode::out_of_mappings);
  base_ = static_cast<std::byte*>(base);
}

HostReservation::~HostReservation() { ::munmap(base_, bytes_); }

void HostReservation::map(std::size_t at, const PhysicalChunk& chunk, std::size_t from, std::size_t bytes) {
  if (from > chunk.size() || bytes > chunk.size() - from || at > bytes_ || bytes > bytes_ - at)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("bytes {} to {} of a chunk of {} do not fit at {} of {} addresses", from,
                            from + bytes, chunk.size(), at, bytes_));
  const Fd& fd = static_cast<const MemfdChunk&>(chunk).fd();
  if (::mmap(base_ + at, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, fd.get(), static_cast<off_t>(from)) ==
      MAP_FAILED)
    throw_errno(fmt::format("cannot map {} bytes of a chunk", bytes), errno, ErrorCode::out_of_mappings);
}

/// The addresses stay reserved. If the system has no room for that, they stay mapped, without access.
void HostReservation::unmap(std::size_t at, std::size_t bytes) noexcept {
  if (::mmap(base_ + at, bytes, PROT_NONE, kNothing | MAP_FIXED, -1, 0) == MAP_FAILED)
    ::mprotect(base_ + at, bytes, PROT_NONE);
}

void HostReservation::allow(int, std::size_t at, std::size_t bytes, Access access) {
  const int wanted = access == Access::read_only ? PROT_READ : PROT_READ | PROT_WRITE;
  if (::mprotect(base_ + at, bytes, wanted) == 0) return;
  if (errno == EACCES)
    throw Error(ErrorCode::read_only, "the chunk was lent read-only; map it with Access::read_only", EACCES,
                ErrorDomain::posix);
  throw_errno(fmt::format("cannot give access to {} bytes of a chunk", bytes), errno,
              ErrorCode::out_of_mappings);
}

}  // namespace onecopy
