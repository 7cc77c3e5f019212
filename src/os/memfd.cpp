// SPDX-License-Identifier: Apache-2.0
#include "os/memfd.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "onecopy/core/error.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U  // Linux 6.3
#endif

namespace onecopy {

static_assert(kSealShrink == F_SEAL_SHRINK && kSealGrow == F_SEAL_GROW);
static_assert(kSealWrite == F_SEAL_WRITE && kSealFutureWrite == F_SEAL_FUTURE_WRITE);

namespace {

/// Throws if RLIMIT_FSIZE is too low, because the kernel would kill the process (SIGXFSZ) instead of refusing.
void check_file_size_limit(const std::string& name, std::size_t size) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || size <= limit.rlim_cur) return;
  throw Error(ErrorCode::out_of_memory,
              fmt::format("cannot give shared memory \"{}\" {} bytes: files of this process may have {} "
                          "(RLIMIT_FSIZE); raise `ulimit -f`",
                          name, size, limit.rlim_cur),
              EFBIG, ErrorDomain::posix);
}

}  // namespace

Fd create_memfd(const std::string& name, std::size_t size) {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  int raw = ::memfd_create(name.c_str(), kFlags | MFD_NOEXEC_SEAL);
  if (raw < 0 && errno == EINVAL) raw = ::memfd_create(name.c_str(), kFlags);
  if (raw < 0) throw_errno(fmt::format("cannot create shared memory \"{}\"", name), errno);
  Fd fd(raw);
  check_file_size_limit(name, size);
  if (::ftruncate(fd.get(), static_cast<off_t>(size)) != 0)
    throw_errno(fmt::format("cannot give shared memory \"{}\" {} bytes", name, size), errno,
                ErrorCode::invalid_argument);
  add_seals(fd, kSealShrink | kSealGrow);
  return fd;
}

bool try_add_seals(const Fd& fd, int seals) {
  if (::fcntl(fd.get(), F_ADD_SEALS, seals) == 0) return true;
  if (errno == EBUSY) return false;
  throw_errno(fmt::format("cannot add seals {:#x} to shared memory", seals), errno);
}

void add_seals(const Fd& fd, int seals) {
  if (!try_add_seals(fd, seals))
    throw_errno(fmt::format("cannot add seals {:#x} to shared memory", seals), EBUSY);
}

int seals_of(const Fd& fd) {
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0)
    throw_errno("cannot read the seals of a file; it is not shared memory made by memfd_create", errno,
                ErrorCode::invalid_argument);
  return seals;
}

Fd reopen_read_only(const Fd& fd) {
  const int copy = ::open(fmt::format("/proc/self/fd/{}", fd.get()).c_str(), O_RDONLY | O_CLOEXEC);
  if (copy < 0) throw_errno("cannot reopen shared memory read-only (is /proc mounted?)", errno);
  return Fd(copy);
}

std::uint64_t file_size(const Fd& fd) {
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) throw_errno("cannot read the size of a file", errno);
  return static_cast<std::uint64_t>(status.st_size);
}

}  // namespace onecopy
