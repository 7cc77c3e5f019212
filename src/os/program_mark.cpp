// SPDX-License-Identifier: Apache-2.0
#include "os/program_mark.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "onecopy/core/error.h"
#include "os/memfd.h"
#include "os/read_lock.h"

namespace onecopy {
namespace {

constexpr std::size_t kPage = 4096;

}  // namespace

ProgramMark::ProgramMark(const Fd& file) {
  const Fd own = reopen_read_only(file);
  page_ = Mapping::of(own, kPage, Access::read_only);
  if (::madvise(page_.data(), kPage, MADV_DONTFORK) != 0)
    throw_errno("cannot keep a mapping out of forked children", errno);
  lock_for_reading(own);
}

bool may_be_marked(const Fd& file, std::uint64_t inode) noexcept {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0 || status.st_ino != inode) return true;
  return may_be_read(file);
}

}  // namespace onecopy
