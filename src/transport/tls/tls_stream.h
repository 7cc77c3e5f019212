// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "onecopy/core/bytes.h"
#include "os/deadline.h"
#include "os/stream_socket.h"
#include "os/unshared_descriptor.h"
#include "transport/tls/tls_context.h"

namespace onecopy::transport {

/// A TLS connection over a socket, which never waits. write() copies the bytes, which flush() sends.
///
/// Thread safety: none; one thread at a time uses it.
class TlsStream {
 public:
  /// The max plain bytes of a record.
  static constexpr std::size_t kMaxRecordBytes = 16 << 10;

  TlsStream(std::shared_ptr<const TlsContext> context, StreamSocket socket, Side side);
  ~TlsStream() { library_.SSL_free(ssl_); }
  TlsStream& operator=(TlsStream&&) = delete;

  /// Continues the handshake. Returns true once both sides have proved the key, and false if the other side has to send
  /// first. Throws bad_secret for another key, protocol for a stranger, peer_died.
  bool handshake();
  /// Waits until the handshake is done. Throws what handshake() throws, and timeout.
  void handshake(Deadline deadline);

  /// Reads bytes into `into` and returns how many; 0 if none have arrived or the turn is over. Throws peer_died at the
  /// end of the connection, protocol for bytes that were altered.
  std::size_t read(std::span<std::byte> into);
  /// Begins a turn, in which read() takes up to about a MiB from the socket.
  void begin_turn() noexcept { turns_left_ = kReceivesInATurn; }
  /// Returns whether a turn has ended before the socket was empty.
  bool may_have_more() const noexcept { return turns_left_ == 0; }

  /// Returns whether write() may be called.
  bool has_room() const noexcept { return out_.size() - out_begin_ < kBufferBytes; }
  /// Takes a record of up to kMaxRecordBytes. REQUIRES: has_room(). Throws peer_died.
  void write(ByteSpan record);
  /// Sends what write() has taken. Returns false if the socket has no room: a poller tells when it has. Throws
  /// peer_died.
  bool flush();

  int fd() const noexcept { return socket_.fd(); }

 private:
  static constexpr std::size_t kBufferBytes = 128 << 10;
  static constexpr int kReceivesInATurn = 8;
  /// The max records under one key: RFC 8446, 5.5, allows 2^24.5.
  static constexpr std::uint64_t kRecordsOfAKey = std::uint64_t{1} << 22;
  struct Callbacks;

  int take(char* into, int size) noexcept;
  int put(const char* bytes, int size) noexcept;
  [[noreturn]] void throw_failed(int result);
  void send_alert() noexcept;

  const std::shared_ptr<const TlsContext> context_;
  const openssl::Library& library_;
  StreamSocket socket_;
  const UnsharedDescriptor unshared_{socket_.fd()};  ///< a child of this process is not this member
  openssl::SSL* ssl_ = nullptr;
  openssl::BIO* bio_ = nullptr;  ///< the connection's
  Bytes in_, out_;
  std::size_t in_begin_ = 0, in_end_ = 0, out_begin_ = 0;
  int turns_left_ = kReceivesInATurn;
  int error_ = 0;  ///< the errno of the socket
  std::uint64_t records_ = 0;
  bool has_ended_ = false, is_open_ = false;
};

}  // namespace onecopy::transport
