// SPDX-License-Identifier: Apache-2.0
#include "reservation.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "core/throw_error.h"
#include "late_unmaps.h"
#include "physical_chunk.h"

namespace onecopy {

namespace {

constexpr int kNothing = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
/// The bytes that a page table and a table of page tables map. mremap() moves a whole page table between addresses that
/// are equal below its size.
constexpr std::size_t kPageTable = std::size_t{2} << 20;
constexpr std::size_t kTableOfPageTables = std::size_t{1} << 30;

/// Returns addresses at a multiple of `alignment`, or null if there are none.
std::byte* reserve_at(std::size_t bytes, std::size_t alignment) noexcept {
  void* const all = ::mmap(nullptr, bytes + alignment, PROT_NONE, kNothing, -1, 0);
  if (all == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(all);
  const std::size_t before = -reinterpret_cast<std::uintptr_t>(begin) % alignment;
  if (before != 0) ::munmap(begin, before);
  if (before != alignment) ::munmap(begin + before + bytes, alignment - before);
  return begin + before;
}

std::size_t alignment_for(std::size_t bytes) noexcept {
  return bytes < kPageTable ? static_cast<std::size_t>(::getpagesize())
                            : (bytes < kTableOfPageTables ? kPageTable : kTableOfPageTables);
}

/// Returns addresses whose page tables can be moved if there is room for these, else any, or null.
std::byte* reserve(std::size_t bytes) noexcept {
  std::byte* const aligned = reserve_at(bytes, alignment_for(bytes));
  return aligned ? aligned : reserve_at(bytes, static_cast<std::size_t>(::getpagesize()));
}

/// Moves the pages of one mapping to other addresses and returns these: to move the page tables of 1 GiB takes 0.03 ms, and
/// to unmap its pages 0.1 s (two virtual CPUs, November 2026). The mapping itself stays, and accesses enter its pages
/// again. Returns null, with nothing changed, for few bytes, before Linux 5.13, and for addresses that are not one mapping
/// of a file.
///
/// The kernel chooses the addresses and is given aligned ones as a hint: MREMAP_FIXED may unmap them before it fails, and
/// another thread could map something there.
std::byte* move_aside(std::byte* at, std::size_t bytes) noexcept {
  constexpr int kDontUnmap = 4;  // MREMAP_DONTUNMAP of newer headers
  if (bytes < kPageTable) return nullptr;
  std::byte* const hint = reserve(bytes);
  if (!hint) return nullptr;
  ::munmap(hint, bytes);
  void* const aside = ::mremap(at, bytes, bytes, MREMAP_MAYMOVE | kDontUnmap, hint);
  return aside == MAP_FAILED ? nullptr : static_cast<std::byte*>(aside);
}

bool move_mapping(std::byte* from, std::byte* to, std::size_t bytes) noexcept {
  return ::mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) != MAP_FAILED;
}

}  // namespace

HostReservation::HostReservation(std::size_t bytes) : bytes_(bytes), base_(reserve(bytes)) {
  if (!base_)
    throw_errno(fmt::format("cannot reserve {} bytes of addresses", bytes), errno,
                ErrorCode::out_of_mappings);
}

HostReservation::~HostReservation() {
  if (base_) ::munmap(base_, bytes_);
}

void HostReservation::map(std::size_t at, const PhysicalChunk& chunk, std::size_t from, std::size_t bytes) {
  if (from > chunk.size() || bytes > chunk.size() - from || at > bytes_ || bytes > bytes_ - at)
    throw_error(ErrorCode::invalid_argument,
                "bytes {} to {} of a chunk of {} do not fit at {} of {} addresses", from, from + bytes,
                chunk.size(), at, bytes_);
  const Fd& fd = static_cast<const MemfdChunk&>(chunk).fd();
  if (::mmap(base_ + at, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, fd.get(), static_cast<off_t>(from)) ==
      MAP_FAILED)
    throw_errno(fmt::format("cannot map {} bytes of a chunk", bytes), errno, ErrorCode::out_of_mappings);
}

/// Unmaps pages. The addresses stay reserved, or stay mapped without access if the system has no room for another
/// mapping.
void HostReservation::unmap(std::size_t at, std::size_t bytes) noexcept {
  std::byte* const aside = move_aside(base_ + at, bytes);
  if (::mmap(base_ + at, bytes, PROT_NONE, kNothing | MAP_FIXED, -1, 0) == MAP_FAILED)
    ::mprotect(base_ + at, bytes, PROT_NONE);
  if (aside) LateUnmaps::get().add(aside, bytes);
}

/// Moves the pages here aside first, so that the kernel has nothing to unmap while it moves the others, and so that they can
/// come back after an error. The addresses are mapped all the time: an access waits while the kernel changes a mapping.
bool HostReservation::try_take(Reservation& other) {
  auto& from = static_cast<HostReservation&>(other);
  if (from.bytes_ != bytes_)
    throw_error(ErrorCode::invalid_argument, "{} bytes of addresses cannot take the place of {}",
                from.bytes_, bytes_);
  std::byte* const aside = move_aside(base_, bytes_);
  const bool is_moved = move_mapping(from.base_, base_, bytes_);
  const int error = errno;
  if (aside && (is_moved || !move_mapping(aside, base_, bytes_))) LateUnmaps::get().add(aside, bytes_);
  if (!is_moved)
    throw_errno(fmt::format("cannot move a mapping of {} bytes", bytes_), error,
                ErrorCode::out_of_mappings);
  from.base_ = nullptr;
  return true;
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
