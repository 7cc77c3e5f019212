// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>

#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "share/process.h"

namespace onecopy {
namespace {

[[noreturn]] void refuse(int fd, const std::string& problem) {
  throw Error(ErrorCode::invalid_argument, fmt::format("descriptor {} cannot be adopted: {}", fd, problem));
}

/// Only memory: an ordinary file would be written to its disk behind everybody's back.
void check_is_memory(int fd) {
  struct statfs system {};
  struct stat file {};
  if (::fstatfs(fd, &system) != 0 || ::fstat(fd, &file) != 0)
    throw_errno(fmt::format("cannot examine descriptor {}", fd), errno, ErrorCode::invalid_argument);
  if (!S_ISREG(file.st_mode) || system.f_type != TMPFS_MAGIC)
    refuse(fd, "it is not shared memory (a memfd or a file in /dev/shm); read it into onecopy::empty()");
}

void check_size(int fd, std::size_t size, std::size_t offset) {
  struct stat file {};
  ::fstat(fd, &file);
  if (size == 0) refuse(fd, "no bytes were asked for; use onecopy::empty()");
  const auto there = static_cast<std::uint64_t>(file.st_size);
  if (there < size || there - size < offset)
    refuse(fd, fmt::format("it has {} bytes, {} were asked for from byte {} on; ftruncate() it first",
                           there, size, offset));
}

void check_is_writable(int fd) {
  if ((::fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR)
    throw Error(
        ErrorCode::read_only,
        fmt::format("descriptor {} cannot be adopted: it was not opened for reading and writing", fd));
}

}  // namespace

Tensor adopt_file(int fd, std::size_t size, std::size_t offset) {
  check_is_memory(fd);
  check_size(fd, size, offset);
  check_is_writable(fd);
  Fd own(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!own) throw_errno(fmt::format("cannot duplicate descriptor {}", fd), errno);
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t end = offset + size;
  ExportedMemory memory{SegmentKind::shared_file, (end + page - 1) / page * page, {}, {}};
  memory.fds.push_back(std::move(own));
  auto mapped = backend(DeviceType::cpu).open(0, std::move(memory), Access::read_write);
  mapped->commit(0, end);  // up to the end of the file and no further: that would lengthen it
  return Process::current().adopt(std::move(mapped), size, end, offset);
}

}  // namespace onecopy
