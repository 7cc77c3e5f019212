// SPDX-License-Identifier: Apache-2.0
#include "os/fd.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "onecopy/core/error.h"

namespace onecopy {

void Fd::reset(int fd) noexcept {
  if (whole_) {
    whole_.reset();
  } else if (fd_ >= 0) {
    const int error = errno;
    ::close(fd_);  // never repeated: Linux has closed it even if EINTR is reported
    errno = error;
  }
  fd_ = fd;
}

Fd Fd::duplicate() const {
  const int copy = ::fcntl(fd_, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) throw_errno("cannot duplicate a descriptor", errno);
  return Fd(copy);
}

}  // namespace onecopy
