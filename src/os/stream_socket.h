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

/// A byte stream between processes. Addresses of one host: "unix:/path", "unix:@name" (abstract) and
/// "tcp:127.0.0.1:port" or "tcp:localhost:port" (port 0: any free one). Any process that reaches the address can
/// connect: prove your identity with a key before saying more.
///
/// Thread safety: one thread may send while another receives; moving may not be concurrent. A negative timeout means
/// no limit. Non-blocking, close-on-exec, never SIGPIPE.
class StreamSocket {
 public:
  StreamSocket() noexcept = default;

  /// If a path's directory is missing, it is created (mode 0700); only our user may connect to the path. Throws
  /// invalid_argument for other addresses, system if the address is taken.
  static StreamSocket listen(const std::string& address, int backlog = 128);
  /// Throws peer_died if no socket listens there, timeout, invalid_argument.
  static StreamSocket connect(const std::string& address, std::chrono::milliseconds timeout);
  /// Across hosts. Throw as above.
  static StreamSocket listen(const HostPort& at, int backlog = 128);
  static StreamSocket connect(const HostPort& at, std::chrono::milliseconds timeout);

  /// Of a listener: the address to connect to, with the real port. Of a connection: the address it was made to; empty
  /// for an accepted one.
  const std::string& address() const noexcept { return address_; }

  /// Throws timeout, out_of_descriptors.
  StreamSocket accept(std::chrono::milliseconds timeout);
  std::optional<StreamSocket> try_accept();

  /// Sends everything. Throws peer_died, timeout; a part may have been sent then.
  void send_all(ByteSpan bytes, std::chrono::milliseconds timeout);
  /// Fills `bytes`. Throws peer_died, timeout; a part may have been taken then.
  void receive_exactly(std::span<std::byte> bytes, std::chrono::milliseconds timeout);

  /// Empty for TCP, which does not know the peer.
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
