// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include "os/bound_path.h"
#include "os/fd.h"
#include "os/unix_socket.h"

namespace onecopy {

/// A SocketName in the form that the kernel takes. Thread safety: as a value.
class UnixAddress {
 public:
  /// Converts the name. Throws invalid_argument if it is empty or too long for a sockaddr_un.
  explicit UnixAddress(const SocketName& name);

  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&address_); }
  socklen_t size() const noexcept { return size_; }

 private:
  sockaddr_un address_{};
  socklen_t size_ = 0;
};

/// Creates a non-blocking, close-on-exec AF_UNIX socket of `type` (SOCK_SEQPACKET, SOCK_STREAM).
Fd make_unix_socket(int type);
/// Binds and listens. Only this user can connect to a path. Replaces an existing path on which no socket listens.
/// `is_locked`: the caller holds the lock of the path's directory. REQUIRES: the path's directory exists.
BoundPath listen_unix(const Fd& fd, const SocketName& name, int type, int backlog, bool is_locked = false);
/// Connects the socket to the name. Throws peer_died, timeout, other_user.
void connect_unix(const Fd& fd, const SocketName& name, std::chrono::milliseconds timeout);

/// Accepts the next waiting connection, non-blocking and close-on-exec; returns an empty Fd if none waits.
Fd try_accept_from(int listener);

}  // namespace onecopy
