// SPDX-License-Identifier: Apache-2.0
#include "channel/ring/presence.h"

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

Fd play(const Fd& ring, Role role) {
  const std::string path = fmt::format("/proc/self/fd/{}", ring.get());
  Fd own(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!own) throw_errno("cannot open the queue's memory again", errno);
  play_again(own, role);
  return own;
}

void play_again(const Fd& played, Role role) {
  struct flock lock = byte_of(role, F_RDLCK);
  if (::fcntl(played.get(), F_OFD_SETLK, &lock) != 0) throw_errno("cannot lock the queue's memory", errno);
}

void stop_playing(const Fd& played, Role role) noexcept {
  struct flock lock = byte_of(role, F_UNLCK);
  ::fcntl(played.get(), F_OFD_SETLK, &lock);
}

bool is_played(const Fd& ring, Role role) noexcept {
  struct flock lock = byte_of(role, F_WRLCK);
  return ::fcntl(ring.get(), F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

}  // namespace onecopy
