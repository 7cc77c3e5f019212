// SPDX-License-Identifier: Apache-2.0
#include "os/event.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "onecopy/core/error.h"

namespace onecopy {

Event::Event() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!fd_) throw_errno("cannot create an eventfd", errno);
}

void Event::set() noexcept {
  const int error = errno;
  // EAGAIN means that the counter is full, so the flag is set already.
  while (::eventfd_write(fd_.get(), 1) != 0 && errno == EINTR) {
  }
  errno = error;
}

void Event::clear() noexcept {
  eventfd_t count;
  while (::eventfd_read(fd_.get(), &count) != 0 && errno == EINTR) {
  }
}

}  // namespace onecopy
