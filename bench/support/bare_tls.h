// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <thread>

#include "os/host_port.h"
#include "os/stream_socket.h"
#include "transport/tls/tls_context.h"

namespace onecopy::bench {

/// A bare OpenSSL program: blocking SSL_write() and SSL_read() on a socket, with the key and the cipher of rpc.
/// Thread safety: none of its own.
class BareTls {
 public:
  /// Makes the handshake, which proves the key. Throws system.
  BareTls(StreamSocket socket, transport::Side side);
  ~BareTls();
  BareTls(const BareTls&) = delete;
  BareTls& operator=(const BareTls&) = delete;

  /// Sends `count` messages of `bytes` bytes, and returns when the other side has received all of them.
  void send(std::uint64_t bytes, std::uint64_t count);
  /// Receives the messages of send() until the other side has ended.
  void serve();

 private:
  bool read(void* into, std::size_t bytes);
  void write(const void* from, std::size_t bytes);

  StreamSocket socket_;
  const std::unique_ptr<const transport::TlsContext> context_;
  openssl::SSL* ssl_;
  Bytes buffer_;
};

/// Serves one BareTls on a port of any address.
/// Thread safety: none of its own.
class BareTlsServer {
 public:
  static constexpr std::uint16_t kPort = 4712;
  BareTlsServer();

 private:
  StreamSocket listener_;
  std::jthread thread_;
};

}  // namespace onecopy::bench
