// SPDX-License-Identifier: Apache-2.0
#include "os/program_mark.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "onecopy/core/error.h"
#include "os/memfd.h"

namespace onecopy {
namespace {

constexpr std::size_t kPage = 4096;

struct flock whole_file(short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

}  // namespace

ProgramMark::ProgramMark(const Fd& file) {
  const Fd own = reopen_read_only(file);
  page_ = Mapping::of(own, kPage, Access::read_only);
  if (::madvise(page_.data(), kPage, MADV_DONTFORK) != 0)
    throw_errno("cannot keep a mapping out of forked children", errno);
  struct flock lock = whole_file(F_RDLCK);
  if (::fcntl(own.get(), F_OFD_SETLK, &lock) != 0) throw_errno("cannot lock shared memory", errno);
}

bool may_be_marked(const Fd& file, std::uint64_t inode) noexcept {
  struct stat status {};
  struct flock lock = whole_file(F_WRLCK);
  if (::fstat(file.get(), &status) != 0 || status.st_ino != inode) return true;
  return ::fcntl(file.get(), F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

}  // namespace onecopy
