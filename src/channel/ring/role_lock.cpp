// SPDX-License-Identifier: Apache-2.0
#include "channel/ring/role_lock.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>

#include "onecopy/core/error.h"

namespace onecopy {
namespace {

struct flock byte_of(Role role, short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(role);
  lock.l_len = 1;
  return lock;
}

}  // namespace

Fd hold_role(const Fd& ring, Role role) {
  const std::string path = fmt::format("/proc/self/fd/{}", ring.get());
  Fd own(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!own) throw_errno("cannot open the queue's memory again", errno);
  hold_role_again(own, role);
  return own;
}

void hold_role_again(const Fd& held, Role role) {
  struct flock lock = byte_of(role, F_RDLCK);
  if (::fcntl(held.get(), F_OFD_SETLK, &lock) != 0) throw_errno("cannot lock the queue's memory", errno);
}

void release_role(const Fd& held, Role role) noexcept {
  struct flock lock = byte_of(role, F_UNLCK);
  ::fcntl(held.get(), F_OFD_SETLK, &lock);
}

bool is_role_held(const Fd& ring, Role role) noexcept {
  struct flock lock = byte_of(role, F_WRLCK);
  return ::fcntl(ring.get(), F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

}  // namespace onecopy
