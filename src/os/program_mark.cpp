// SPDX-License-Identifier: Apache-2.0
#include "os/program_mark.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "onecopy/core/error.h"
#include "os/memfd.h"
#include "os/read_lock.h"
#include "os/unshared_descriptor.h"

namespace onecopy {
namespace {

constexpr std::size_t kPage = 4096;

}  // namespace

ProgramMark::ProgramMark(const Fd& file) : ProgramMark(file, 0) {}

ProgramMark::ProgramMark(const Fd& file, std::uint64_t byte) {
  const Fd own = reopen_read_only(file);
  const UnsharedDescriptor unshared(own.get());
  page_ = Mapping::of(own, kPage, Access::read_only);
  if (::madvise(page_.data(), kPage, MADV_DONTFORK) != 0)
    throw_errno("cannot keep a mapping out of forked children", errno);
  lock_for_reading(own, byte);
}

namespace {

bool is_that(const Fd& file, std::uint64_t inode) noexcept {
  struct stat status {};
  return ::fstat(file.get(), &status) == 0 && status.st_ino == inode;
}

}  // namespace

bool may_be_marked(const Fd& file, std::uint64_t inode) noexcept {
  return !is_that(file, inode) || may_be_read(file);
}

bool may_be_marked(const Fd& file, std::uint64_t inode, std::uint64_t byte) noexcept {
  return !is_that(file, inode) || may_be_read(file, byte);
}

}  // namespace onecopy
