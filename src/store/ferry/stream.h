// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "os/deadline.h"
#include "os/host_address.h"
#include "store/ferry/messages.h"
#include "transport/tls/tls_stream.h"

namespace onecopy::store::ferry {

/// A connection to another host on which both sides have proved the key. Its functions wait, and throw timeout once nothing was
/// sent or received for `patience`, peer_died and protocol.
///
/// Thread safety: none. After an error, nothing more can be sent.
class Stream {
 public:
  explicit Stream(std::unique_ptr<transport::TlsStream> stream) : stream_(std::move(stream)) {}
  /// Connects to the first address of a host that answers, and proves the key. Throws bad_secret, timeout, peer_died, system.
  static Stream connect(const HostAddress& to, std::shared_ptr<const transport::TlsContext> context,
                        Deadline deadline);

  /// Sends bytes, and returns their CRC-32C, which costs little while they are in the processor's cache.
  std::uint32_t send(ByteSpan bytes, std::chrono::milliseconds patience, std::uint32_t before = 0);
  /// Fills `into`, and returns the CRC-32C of what is in the memory then, behind that of bytes `before`.
  std::uint32_t receive(std::span<std::byte> into, std::chrono::milliseconds patience,
                        std::uint32_t before = 0);
  template <class Message>
  void send_message(const Message& message, std::chrono::milliseconds patience) {
    send_frame(write_fields(message), patience);
  }
  template <class Message>
  Message receive_message(std::chrono::milliseconds patience) {
    return read_fields<Message>(receive_frame(patience, kMaxAnswer), ErrorCode::protocol,
                                "an answer of another host");
  }
  /// Returns the descriptor of the connection.
  int fd() const noexcept { return stream_->fd(); }
  /// Receives a frame: its length in four bytes, and its content.
  Bytes receive_frame(std::chrono::milliseconds patience, std::uint64_t max_bytes);

 private:
  void send_frame(ByteSpan content, std::chrono::milliseconds patience);
  void flush(std::chrono::milliseconds patience);

  std::unique_ptr<transport::TlsStream> stream_;
};

}  // namespace onecopy::store::ferry
