// SPDX-License-Identifier: Apache-2.0
#include "reservation.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "core/throw_error.h"
#include "os/blocked_signals.h"
#include "os/fork_hook.h"
#include "os/mutex.h"
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

/// The address ranges that a thread unmaps, which ends when no range is left: the kernel takes 0.1 s to unmap 1 GiB of 4 KiB
/// pages (two virtual CPUs, November 2026). A forked child unmaps its copies of them at once, because it has no page tables
/// of shared memory yet.
///
/// Thread safety: all members may be called concurrently. Invariant: each range in the list is still mapped, and belongs
/// to the list.
class LateUnmaps {
 public:
  /// Returns the list of this process, which is never destroyed.
  static LateUnmaps& get() {
    static LateUnmaps* const unmaps = new LateUnmaps;
    return *unmaps;
  }

  /// Unmaps a range soon, or at once if no thread can be started. Waits at most for one piece. REQUIRES: the caller has
  /// reserved the range, and does not use it afterwards.
  void add(std::byte* at, std::size_t bytes) noexcept {
    try {
      const LockGuard lock(mutex_);
      ranges_.push_back({at, bytes});
      if (has_thread_ || try_start()) return;
    } catch (const std::bad_alloc&) {
      ::munmap(at, bytes);
    }
    while (unmap_piece()) continue;
  }

  // The steps at a fork, which happens between them: the analysis cannot follow that the list stays locked.
  static void lock() NO_THREAD_SAFETY_ANALYSIS { get().mutex_.lock(); }
  static void unlock() NO_THREAD_SAFETY_ANALYSIS { get().mutex_.unlock(); }
  static void begin_in_child() NO_THREAD_SAFETY_ANALYSIS {
    for (const Range& range : get().ranges_) ::munmap(range.at, range.bytes);
    get().ranges_.clear();
    get().has_thread_ = false;
    unlock();
  }

 private:
  struct Range {
    std::byte* at;
    std::size_t bytes;
  };

  /// Starts the thread. Returns false if the system's limit of threads is reached.
  bool try_start() noexcept REQUIRES(mutex_) {
    try {
      const BlockedSignals blocked;
      std::thread([this] {
        pthread_setname_np(pthread_self(), "onecopy-unmap");
        while (unmap_piece()) continue;
      }).detach();
      return has_thread_ = true;
    } catch (const std::system_error&) {
      return false;
    }
  }

  /// Unmaps the end of the last range, 1 MiB at most, in 0.1 ms: the kernel lets no other mapping of the process change
  /// meanwhile. Returns false if there is none.
  bool unmap_piece() noexcept {
    constexpr std::size_t kUnmapPiece = std::size_t{1} << 20;
    const LockGuard lock(mutex_);
    if (ranges_.empty()) return has_thread_ = false;
    Range& last = ranges_.back();
    const std::size_t piece = (last.bytes - 1) % kUnmapPiece + 1;
    last.bytes -= piece;
    ::munmap(last.at + last.bytes, piece);
    if (last.bytes == 0) ranges_.pop_back();
    return true;
  }

  Mutex mutex_;
  std::vector<Range> ranges_ GUARDED_BY(mutex_);
  bool has_thread_ GUARDED_BY(mutex_) = false;
};

const ForkHook kUnmapsAtFork{ForkRank::leaves,
                             {&LateUnmaps::lock, &LateUnmaps::unlock, &LateUnmaps::begin_in_child}};

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
