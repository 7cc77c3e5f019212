// SPDX-License-Identifier: Apache-2.0
#include "os/read_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <sstream>
#include <string>

#include "onecopy/core/error.h"
#include "os/file.h"

namespace onecopy {
namespace {

struct flock whole_file(short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

}  // namespace

void lock_for_reading(const Fd& file) {
  struct flock lock = whole_file(F_RDLCK);
  if (::fcntl(file.get(), F_OFD_SETLK, &lock) != 0) throw_errno("cannot lock shared memory", errno);
}

bool may_be_read(const Fd& file) noexcept {
  struct flock lock = whole_file(F_WRLCK);
  return ::fcntl(file.get(), F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

ReadLocks::ReadLocks() {
  std::istringstream lines(try_read_text("/proc/locks").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    File file{};
    // A line reads "1: OFDLCK ADVISORY  READ -1 00:01:1066 0 EOF".
    if (std::sscanf(line.c_str(), "%*s OFDLCK %*s READ %*s %" SCNx64 ":%" SCNx64 ":%" SCNu64, &file[0],
                    &file[1], &file[2]) == 3)
      ++counts_[file];
  }
}

unsigned ReadLocks::count(const Fd& file) const {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return 0;
  const auto found = counts_.find({major(status.st_dev), minor(status.st_dev), status.st_ino});
  return found != counts_.end() ? found->second : may_be_read(file);
}

}  // namespace onecopy
