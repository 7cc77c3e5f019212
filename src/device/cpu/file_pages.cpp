// SPDX-License-Identifier: Apache-2.0
#include "file_pages.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <vector>

#include "core/point.h"
#include "core/throw_error.h"
#include "device/reserve_listener.h"
#include "os/crew.h"
#include "os/memory_limit.h"
#include "os/process.h"

namespace onecopy {

namespace {

constexpr int kPopulateWrite = 23;                            // MADV_POPULATE_WRITE, Linux 5.14
constexpr std::size_t kBetweenCalls = std::size_t{16} << 20;  // the bytes between two calls of a listener
constexpr std::size_t kPiece = std::size_t{2} << 20;  // the bytes of one system call, and of a huge page
constexpr std::size_t kBytesPerThread = std::size_t{4} << 20;
constexpr std::size_t kBlock = 512;  // the unit of stat(2)
constexpr std::size_t kMaxThreads = 8;

// The bytes between two looks at the memory limits.
constexpr std::size_t kBetweenLooks = std::size_t{8} << 20;

std::size_t max_threads() {
  static const auto cpus = static_cast<std::size_t>(std::max(1, usable_cpus()));
  return std::min(cpus, kMaxThreads);
}

/// Returns the bytes kept free for reservations that other processes (about three) make between their check and ours.
std::size_t margin() { return 3 * (kBetweenLooks + max_threads() * kPiece); }

struct Range {
  std::size_t begin;
  std::size_t end;
};

/// Returns whether every page of the file has memory; false for files on disks, which count more than pages.
bool is_whole(const Fd& fd, std::size_t size) noexcept {
  struct statfs system {};
  struct stat status {};
  return ::fstatfs(fd.get(), &system) == 0 && system.f_type == TMPFS_MAGIC &&
         ::fstat(fd.get(), &status) == 0 && static_cast<std::size_t>(status.st_size) == size &&
         static_cast<std::size_t>(status.st_blocks) * kBlock == size;
}

/// Returns the parts of the range that have no pages yet, or all of it if the file cannot tell. The system looks at
/// each page of a file that has holes: 80 ms for 4 GiB.
std::vector<Range> holes(const Fd& fd, std::size_t size, Range range) {
  std::vector<Range> found;
  if (is_whole(fd, size)) return found;
  while (range.begin < range.end) {
    const off_t hole = ::lseek(fd.get(), static_cast<off_t>(range.begin), SEEK_HOLE);
    if (hole < 0) {
      found.push_back(range);
      break;
    }
    const std::size_t begin = std::max(range.begin, static_cast<std::size_t>(hole));
    if (begin >= range.end) break;
    const off_t data = ::lseek(fd.get(), static_cast<off_t>(begin), SEEK_DATA);
    const std::size_t end = data < 0 ? range.end : std::min(range.end, static_cast<std::size_t>(data));
    found.push_back({begin, end});
    range.begin = end;
  }
  return found;
}

int try_fallocate(const FilePages& file, std::size_t offset, std::size_t bytes) noexcept {
  int result = 0;
  do {
    result = ::fallocate(file.fd.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  return result == 0 ? 0 : errno;
}

/// Reserves a piece and returns 0 or errno. Populating a mapping also enters the pages into its page tables, and takes the
/// kernel's advice for huge pages, which fallocate does not: 1 GiB took 34 ms with it, and 347 ms by fallocate and
/// populating (two virtual CPUs, November 2026). A failing fallocate takes its pages back, which matters if others may have
/// filled them, and has the errno of a full file system.
int reserve_piece(const FilePages& file, std::size_t offset, std::size_t bytes) noexcept {
  const auto try_populate = [&] { return ::madvise(file.base + offset, bytes, kPopulateWrite) == 0; };
  if (file.ours && file.base && try_populate()) return 0;
  if (const int error = try_fallocate(file, offset, bytes); error != 0) return error;
  if (!file.base || try_populate()) return 0;
  // Older kernels do not know the call (EINVAL), so the first user faults. ENOMEM and EFAULT mean that memory ran out.
  return errno == ENOMEM || errno == EFAULT ? errno : 0;
}

bool has_margin() noexcept {
  try {
    require_memory(0, margin());
    return true;
  } catch (const std::exception&) {  // the caller of the batch reports the error
    return false;
  }
}

/// The work of a crew: each thread takes pieces until none is left, one failed, the caller ends it, or memory runs short.
/// Others in the control group may reserve at the same time, and the group kills processes instead of refusing.
class Pieces {
 public:
  Pieces(const FilePages& file, Range range) : file_(file), range_(range), next_(range.begin) {}

  /// Reserves one piece. Returns false if there is no more to do.
  bool reserve_next() noexcept {
    if (error() != 0 || has_ended_) return false;
    const std::size_t begin = next_.fetch_add(kPiece);
    if (begin >= range_.end) return false;
    if (begin != range_.begin && (begin - range_.begin) % kBetweenLooks == 0 && !has_margin())
      has_ended_ = true;
    const std::size_t bytes = std::min(kPiece, range_.end - begin);
    if (const int failed = reserve_piece(file_, begin, bytes); failed != 0)
      error_.store(failed, std::memory_order_relaxed);
    else done_ += bytes;
    return true;
  }
  void end_soon() noexcept { has_ended_ = true; }
  int error() const noexcept { return error_.load(std::memory_order_relaxed); }
  /// Returns the bytes that are reserved, in pieces that need not be neighbours while threads work.
  std::size_t done() const noexcept { return done_; }
  /// Returns the offset up to which all is reserved. REQUIRES: no error, and all work is done.
  std::size_t end() const noexcept { return std::min(next_.load(), range_.end); }

 private:
  const FilePages& file_;
  const Range range_;
  std::atomic<std::size_t> next_;
  std::atomic<std::size_t> done_{0};
  std::atomic<int> error_{0};
  std::atomic<bool> has_ended_{false};
};

std::size_t threads_for(std::size_t bytes) {
  return std::clamp<std::size_t>(bytes / kBytesPerThread, 1, max_threads());
}

[[noreturn]] void throw_refused(const FilePages& file, std::size_t asked, std::size_t done, int error) {
  if (error != ENOSPC && error != ENOMEM && error != EFAULT)
    throw_errno(fmt::format("cannot reserve {} bytes of shared memory{}", asked, file.where), error);
  throw Error(ErrorCode::out_of_memory,
              fmt::format("cannot reserve {} bytes of shared memory: the system refused after {} bytes "
                          "({}){}",
                          asked, done, std::strerror(error), file.where),
              error, ErrorDomain::posix);
}

std::size_t huge_page() {
  constexpr std::size_t kUsual = std::size_t{2} << 20;
  static const std::size_t bytes = [] {
    std::size_t found = 0;
    std::ifstream("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size") >> found;
    return found != 0 ? found : kUsual;
  }();
  return bytes;
}

/// Asks for huge pages if all of a file is reserved at once, and they are little more than it. Parts of a file are given
/// back in parts.
void advise(const FilePages& file, std::size_t bytes) {
  constexpr std::size_t kMany = 16;  // the last one is not whole
  if (!file.ours || !file.base || bytes != file.size) return;
  if (bytes % huge_page() == 0 || bytes >= kMany * huge_page()) ::madvise(file.base, bytes, MADV_HUGEPAGE);
}

/// Reserves pieces with other threads, and tells the listener of this thread how far they are.
void reserve_together(Pieces& pieces, std::size_t bytes, std::size_t asked, std::size_t done) {
  const Crew crew(threads_for(bytes) - 1, [&pieces] {
    while (pieces.reserve_next()) continue;
  });
  try {
    std::size_t told = 0;
    while (pieces.reserve_next()) {
      const std::size_t now = pieces.done();
      if (now - told < kBetweenCalls || now == bytes) continue;
      ReserveListener::tell(done + now, asked);
      told = now;
    }
  } catch (...) {
    pieces.end_soon();
    throw;
  }
}

void reserve_hole(const FilePages& file, Range hole, std::size_t asked, std::size_t& done) {
  while (hole.begin < hole.end) {
    require_memory(asked - done, std::min(margin(), 8 * asked));
    Pieces pieces(file, hole);
    reserve_together(pieces, hole.end - hole.begin, asked, done);
    if (pieces.error() != 0) throw_refused(file, asked, done + pieces.done(), pieces.error());
    done += pieces.end() - hole.begin;
    hole.begin = pieces.end();
    ReserveListener::tell(done, asked);
  }
}

}  // namespace

void reserve_pages(const FilePages& file, std::size_t offset, std::size_t bytes) {
  if (offset > file.size || bytes > file.size - offset)
    throw_error(ErrorCode::invalid_argument, "bytes {} to {} are outside of a segment of {}", offset,
                offset + bytes, file.size);
  const std::vector<Range> missing = holes(file.fd, file.size, {offset, offset + bytes});
  std::size_t asked = 0;
  for (const Range& hole : missing) asked += hole.end - hole.begin;
  std::size_t done = 0;
  advise(file, asked);
  point("reserve.holes_found");
  try {
    for (const Range& hole : missing) reserve_hole(file, hole, asked, done);
  } catch (const Error&) {  // after a listener's own exception the caller gives the pages back
    if (file.ours)
      for (const Range& hole : missing) give_back_pages(file.fd, hole.begin, hole.end - hole.begin);
    throw;
  }
}

std::size_t present_pages(const Fd& fd, std::size_t size) noexcept {
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return size;
  return std::min(size, static_cast<std::size_t>(status.st_blocks) * kBlock);
}

void give_back_pages(const Fd& fd, std::size_t offset, std::size_t bytes) noexcept {
  int result = 0;
  do {
    result = ::fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                         static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
}

}  // namespace onecopy
