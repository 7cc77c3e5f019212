// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include "os/bound_path.h"
#include "os/fd.h"
#include "os/unix_socket.h"

namespace onecopy {

/// A SocketName as the kernel takes it. Thread safety: as a value.
class UnixAddress {
 public:
  /// Throws invalid_argument if the name is empty or longer than a sockaddr_un has room for.
  explicit UnixAddress(const SocketName& name);

  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&address_); }
  socklen_t size() const noexcept { return size_; }

 private:
  sockaddr_un address_{};
  socklen_t size_ = 0;
};

/// A non-blocking, close-on-exec AF_UNIX socket of `type` (SOCK_SEQPACKET, SOCK_STREAM).
Fd make_unix_socket(int type);
/// Binds and listens. Only our user can connect to a path. If no socket listens on an existing path any more, it is
/// replaced. Its directory must exist.
BoundPath listen_unix(const Fd& fd, const SocketName& name, int type, int backlog);
/// Throws peer_died, timeout, other_user.
void connect_unix(const Fd& fd, const SocketName& name, std::chrono::milliseconds timeout);

/// The next waiting connection, non-blocking and close-on-exec; empty if none waits.
Fd try_accept_from(int listener);

}  // namespace onecopy
