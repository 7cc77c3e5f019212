// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "core/fields.h"
#include "store/ferry/stream.h"

namespace onecopy::store::ferry {

inline Bytes test_key() {
  const std::string text = "a secret of these tests, of 40 characters";
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

/// A host with one version, which may damage or withhold what another host asks for. It serves connections one after the other.
/// Thread safety: the members of the test's thread; the functions are called by another thread.
class FalseSource {
 public:
  /// An answer to a question about a chunk.
  struct Answer {
    Chunk head;
    Bytes bytes;
    Checksum sum;
  };
  Told told;
  Bytes content;
  std::function<void(Answer&)> change = [](Answer&) {};  ///< changes an answer before it is sent

  FalseSource() : listener_(StreamSocket::listen(HostPort::of_ipv4(INADDR_LOOPBACK, 0))) {}
  ~FalseSource() {
    is_over_ = true;
    if (connection_ >= 0) ::shutdown(connection_, SHUT_RDWR);
    thread_ = {};
  }
  FalseSource(const FalseSource&) = delete;
  FalseSource& operator=(const FalseSource&) = delete;

  /// Starts to serve. REQUIRES: the members above change no more.
  void start() {
    thread_ = std::jthread([this] { run(); });
  }
  HostAddress address() const { return HostAddress(listener_.address().substr(sizeof "tcp:" - 1)); }
  /// Returns how often a chunk was asked for.
  int asked() const noexcept { return asked_; }

 private:
  static constexpr std::chrono::milliseconds kPoll{20}, kPatience{60'000};

  void run() noexcept {
    while (!is_over_) {
      try {
        serve(listener_.accept(kPoll));
      } catch (const Error&) {  // nobody has come, or the other host has left
      }
    }
  }

  void serve(StreamSocket socket) {
    const auto context = std::make_shared<const transport::TlsContext>(test_key(), kStoreProtocol);
    auto connection =
        std::make_unique<transport::TlsStream>(context, std::move(socket), transport::Side::listener);
    connection->handshake(Deadline::after(kPatience));
    connection_ = connection->fd();
    Stream stream(std::move(connection));
    while (!is_over_) {
      const Bytes question = stream.receive_frame(kPatience, kMaxQuestion);
      FieldReader reader(question, ErrorCode::protocol, "a question");
      std::uint32_t protocol = 0;
      Question kind{};
      reader(protocol, kind);
      if (kind == Question::poll) stream.send_message(told, kPatience);
      else take(stream, read_fields<Take>(question, ErrorCode::protocol, "a question").chunk);
    }
  }

  void take(Stream& stream, std::uint64_t chunk) {
    ++asked_;
    const ByteSpan bytes =
        ByteSpan(content).subspan(chunk * kChunkBytes, bytes_of_chunk(chunk, content.size()));
    Answer answer{
        {chunk, static_cast<std::uint32_t>(bytes.size())}, {bytes.begin(), bytes.end()}, {crc32c(bytes)}};
    change(answer);
    stream.send_message(answer.head, kPatience);
    stream.send(answer.bytes, kPatience);
    stream.send_message(answer.sum, kPatience);
  }

  StreamSocket listener_;
  std::atomic<bool> is_over_{false};
  std::atomic<int> asked_{0}, connection_{-1};
  std::jthread thread_;
};

}  // namespace onecopy::store::ferry
