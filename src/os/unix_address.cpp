// SPDX-License-Identifier: Apache-2.0
#include "os/unix_address.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <thread>

#include "core/throw_error.h"
#include "os/deadline.h"
#include "os/file.h"
#include "os/log.h"

namespace onecopy {
namespace {

std::string shown(const SocketName& name) { return (name.abstract ? "@" : "") + name.text; }

/// Connects like connect(2), but neither blocks for ever nor fails at once when the backlog is full.
int connect_once(int fd, const UnixAddress& address) noexcept {
  int result;
  do {
    result = ::connect(fd, address.get(), address.size());
  } while (result != 0 && errno == EINTR);
  return result == 0 ? 0 : errno;
}

void set_blocking(int fd, bool blocking) noexcept {
  const int flags = ::fcntl(fd, F_GETFL);
  ::fcntl(fd, F_SETFL, blocking ? flags & ~O_NONBLOCK : flags | O_NONBLOCK);
}

/// Waits in the kernel while the backlog is full, without polling.
int connect_within(int fd, const UnixAddress& address, std::chrono::milliseconds timeout) noexcept {
  if (timeout.count() == 0) return connect_once(fd, address);
  timeval limit{};  // zero means no limit here, as a negative timeout does in this library
  if (timeout.count() > 0) {
    limit.tv_sec = static_cast<time_t>(timeout.count() / 1000);
    limit.tv_usec = static_cast<suseconds_t>(timeout.count() % 1000 * 1000);
  }
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  set_blocking(fd, true);
  const int error = connect_once(fd, address);
  set_blocking(fd, false);
  return error;
}

/// Returns whether the process that created `address` has stopped listening.
bool is_abandoned(const UnixAddress& address, int type) {
  const Fd probe = make_unix_socket(type);
  return connect_once(probe.get(), address) == ECONNREFUSED;
}

int bind_once(int fd, const UnixAddress& address) noexcept {
  return ::bind(fd, address.get(), address.size()) == 0 ? 0 : errno;
}

/// A lock held from bind to listen. In between a socket looks abandoned, and two processes that find one abandoned file
/// must not unlink each other's new one. Any user may take the lock, and a stopped process keeps it, so after a long
/// wait a process proceeds without the lock.
class DirectoryLock {
 public:
  explicit DirectoryLock(const std::string& path)
      : directory_(open_file(directory_of(path), O_RDONLY | O_DIRECTORY)) {
    const Deadline deadline(kTimeout);
    while (::flock(directory_.get(), LOCK_EX | LOCK_NB) != 0 && (errno == EWOULDBLOCK || errno == EINTR)) {
      if (deadline.has_passed()) {
        log_warning("another process holds the lock of the directory of {}", path);
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  /// Unlocks explicitly, because a child forked in between shares the descriptor and would keep the lock.
  ~DirectoryLock() { ::flock(directory_.get(), LOCK_UN); }
  DirectoryLock& operator=(DirectoryLock&&) = delete;

 private:
  static constexpr std::chrono::milliseconds kTimeout{1000};
  Fd directory_;
};

/// Replaces an abandoned path. REQUIRES: the lock of its directory.
int replace_abandoned(const Fd& fd, const UnixAddress& address, const std::string& path, int type) {
  if (!is_abandoned(address, type)) return EADDRINUSE;
  ::unlink(path.c_str());
  return bind_once(fd.get(), address);
}

[[noreturn]] void throw_connect_failed(const SocketName& name, int error) {
  const std::string what = fmt::format("cannot connect to {}", shown(name));
  switch (error) {
    case ECONNREFUSED:
    case ENOENT:
      throw Error(ErrorCode::peer_died, what + ": no process listens there", error, ErrorDomain::posix);
    case EAGAIN:
      throw Error(ErrorCode::timeout, what + ": the listener did not accept the connection in time", error,
                  ErrorDomain::posix);
    case EACCES:
    case EPERM: throw_errno(what, error, ErrorCode::other_user);
    case EPROTOTYPE:
      throw_errno(what + ": the socket belongs to another program", error, ErrorCode::invalid_argument);
    default: throw_errno(what, error);
  }
}

}  // namespace

UnixAddress::UnixAddress(const SocketName& name) {
  const std::size_t most = sizeof address_.sun_path - 1;
  if (name.text.empty()) throw Error(ErrorCode::invalid_argument, "a socket's name is empty; give it one");
  if (name.text.size() > most)
    throw_error(ErrorCode::invalid_argument,
                "the socket's name {} has {} bytes, at most {} are possible; choose a shorter one{}",
                shown(name), name.text.size(), most,
                name.abstract ? "" : " or a directory with a shorter path");
  address_.sun_family = AF_UNIX;
  std::memcpy(address_.sun_path + (name.abstract ? 1 : 0), name.text.data(), name.text.size());
  // An abstract name begins with a zero byte and a path ends with one, so both need one byte more.
  size_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.text.size() + 1);
}

Fd make_unix_socket(int type) {
  Fd fd(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw_errno("cannot create a Unix socket", errno);
  return fd;
}

BoundPath listen_unix(const Fd& fd, const SocketName& name, int type, int backlog, bool is_locked) {
  const UnixAddress address(name);
  if (!name.abstract) ::fchmod(fd.get(), 0600);  // Linux gives this mode to the file that bind creates
  std::optional<DirectoryLock> lock;
  if (!name.abstract && !is_locked) lock.emplace(name.text);
  int error = bind_once(fd.get(), address);
  if (error == EADDRINUSE && !name.abstract) error = replace_abandoned(fd, address, name.text, type);
  if (error != 0) throw_errno(fmt::format("cannot listen on {}", shown(name)), error);
  BoundPath path = name.abstract ? BoundPath() : BoundPath(name.text);
  if (::listen(fd.get(), backlog) != 0) throw_errno(fmt::format("cannot listen on {}", shown(name)), errno);
  return path;
}

void connect_unix(const Fd& fd, const SocketName& name, std::chrono::milliseconds timeout) {
  const int error = connect_within(fd.get(), UnixAddress(name), timeout);
  if (error != 0) throw_connect_failed(name, error);
}

Fd try_accept_from(int listener) {
  for (;;) {
    Fd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd || errno == EAGAIN) return fd;
    if (errno != EINTR && errno != ECONNABORTED) throw_errno("cannot accept a connection", errno);
  }
}

}  // namespace onecopy
