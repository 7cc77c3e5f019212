// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "onecopy/core/bytes.h"
#include "os/bound_path.h"
#include "os/fd.h"
#include "os/host_port.h"
#include "os/unix_socket.h"

namespace onecopy {

/// A byte stream between processes. An address on this host is "unix:/path", "unix:@name" (abstract),
/// "tcp:127.0.0.1:port" or "tcp:localhost:port" (port 0 picks a free port). Any process that reaches the address can
/// connect, so both sides must prove their identity with a key first.
///
/// Thread safety: one thread may send while another receives; moving may not be concurrent. A negative timeout means no
/// limit. Sockets are non-blocking and close-on-exec, and never raise SIGPIPE.
class StreamSocket {
 public:
  StreamSocket() noexcept = default;

  /// Listens at an address. Creates a missing directory of a path (mode 0700); only this user may connect to a path.
  /// Throws invalid_argument for other addresses, system if the address is taken.
  static StreamSocket listen(const std::string& address, int backlog = 128);
  /// Connects to an address. Throws peer_died if no socket listens there, timeout, invalid_argument.
  static StreamSocket connect(const std::string& address, std::chrono::milliseconds timeout);
  /// Listens for other hosts. Throws system if the address is taken.
  static StreamSocket listen(const HostPort& at, int backlog = 128);
  /// Connects to another host. Retries while there is no route to the host. Throws peer_died if no socket listens there,
  /// timeout, system.
  static StreamSocket connect(const HostPort& at, std::chrono::milliseconds timeout);

  /// Returns a listener's address to connect to, with the real port, or the address that a connection was made to;
  /// empty for an accepted connection.
  const std::string& address() const noexcept { return address_; }

  /// Waits for a connection. Throws timeout, out_of_descriptors.
  StreamSocket accept(std::chrono::milliseconds timeout);
  std::optional<StreamSocket> try_accept();

  /// Sends all bytes. Throws peer_died and timeout, after which part of them may have been sent.
  void send_all(ByteSpan bytes, std::chrono::milliseconds timeout);
  /// Fills `bytes`. Throws peer_died and timeout, after which part of the data may have been consumed.
  void receive_exactly(std::span<std::byte> bytes, std::chrono::milliseconds timeout);

  /// Returns the peer's credentials; empty for TCP, which does not know them.
  std::optional<PeerCredentials> peer() const;

  int fd() const noexcept { return fd_.get(); }
  Fd release() noexcept;
  explicit operator bool() const noexcept { return static_cast<bool>(fd_); }

 private:
  StreamSocket(Fd fd, std::string address, BoundPath path = {});

  Fd fd_;
  std::string address_;
  BoundPath path_;
};

}  // namespace onecopy
