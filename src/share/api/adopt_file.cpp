// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/throw_error.h"
#include "device/janitor.h"
#include "onecopy/share/share.h"
#include "os/random.h"
#include "share/runtime/runtime.h"
#include "share/session.h"

namespace onecopy {
namespace {

[[noreturn]] void refuse_file(int fd, const std::string& problem) {
  throw_error(ErrorCode::invalid_argument, "descriptor {} cannot be adopted: {}", fd, problem);
}

/// Throws unless the file is memory: an ordinary file would be written to its disk without notice.
void check_is_memory(int fd) {
  struct statfs system {};
  struct stat file {};
  if (::fstatfs(fd, &system) != 0 || ::fstat(fd, &file) != 0)
    throw_errno(fmt::format("cannot examine descriptor {}", fd), errno, ErrorCode::invalid_argument);
  if (!S_ISREG(file.st_mode) || system.f_type != TMPFS_MAGIC)
    refuse_file(fd,
                "it is not shared memory (a memfd or a file in /dev/shm); read it into onecopy::empty()");
}

void check_size(int fd, std::size_t size, std::size_t offset) {
  struct stat file {};
  ::fstat(fd, &file);
  if (size == 0) refuse_file(fd, "no bytes were asked for; use onecopy::empty()");
  const auto there = static_cast<std::uint64_t>(file.st_size);
  if (there < size || there - size < offset)
    refuse_file(fd, fmt::format("it has {} bytes, {} were asked for from byte {} on; ftruncate() it first",
                                there, size, offset));
}

void check(int fd, std::size_t size, std::size_t offset) {
  check_is_memory(fd);
  check_size(fd, size, offset);
  if ((::fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR)
    throw_error(ErrorCode::read_only,
                "descriptor {} cannot be adopted: it was not opened for reading and writing", fd);
}

std::size_t whole_pages(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

/// Returns a second name for a file. The name ends in a number, as the names of a pool's segments do, but in a much higher
/// one.
std::string second_name() {
  return fmt::format("{}/onecopy-{}-{}", shared_directory(), Runtime::current().name(),
                     random_value<std::uint64_t>() | std::uint64_t{1} << 63);
}

/// Locks the file first: the janitor of another process removes a file that has a second name and no lock.
bool try_give_second_name(const Fd& file, const std::string& path, std::size_t bytes) {
  const std::string open_file = fmt::format("/proc/self/fd/{}", file.get());
  return ::flock(file.get(), LOCK_SH | LOCK_NB) == 0 &&
         ::ftruncate(file.get(), static_cast<off_t>(bytes)) == 0 &&
         ::linkat(AT_FDCWD, open_file.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0;
}

ExportedMemory segment_named(const std::string& path, std::size_t bytes) {
  const auto* begin = reinterpret_cast<const std::byte*>(path.data());
  return {SegmentKind::named_file, bytes, {}, {begin, begin + path.size()}};
}

}  // namespace

std::optional<Tensor> try_adopt_by_name(const Fd& file, std::size_t size, std::size_t offset) {
  check(file.get(), size, offset);
  const std::size_t bytes = whole_pages(offset + size);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0 || status.st_nlink == 0 || status.st_uid != ::geteuid() ||
      static_cast<std::size_t>(status.st_size) > bytes)
    return std::nullopt;
  const std::string path = second_name();
  if (!try_give_second_name(file, path, bytes)) return std::nullopt;
  try {
    auto mapped = backend(DeviceType::cpu).open(0, segment_named(path, bytes), Access::read_write);
    mapped->commit(0, bytes);
    return Runtime::current().adopt(std::move(mapped), size, bytes, offset);
  } catch (...) {
    ::unlink(path.c_str());
    throw;
  }
}

Tensor adopt_file(int fd, std::size_t size, std::size_t offset) {
  check(fd, size, offset);
  Fd own(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!own) throw_errno(fmt::format("cannot duplicate descriptor {}", fd), errno);
  const std::size_t end = offset + size;
  ExportedMemory memory{SegmentKind::shared_file, whole_pages(end), {}, {}};
  memory.fds.push_back(std::move(own));
  auto mapped = backend(DeviceType::cpu).open(0, std::move(memory), Access::read_write);
  mapped->commit(0, end);  // not beyond the end of the file, which would lengthen it
  return Runtime::current().adopt(std::move(mapped), size, end, offset);
}

}  // namespace onecopy
