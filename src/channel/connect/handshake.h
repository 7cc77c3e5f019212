// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/ioctl.h>

#include <array>
#include <chrono>
#include <cstring>
#include <span>
#include <string_view>

#include "channel/ring/ring_wait.h"
#include "onecopy/core/bytes.h"
#include "onecopy/core/error.h"
#include "os/hmac.h"
#include "os/random.h"
#include "os/stream_socket.h"

/// The messages between a listener and its client until they have a pipe. Both prove that they know the key.
namespace onecopy::handshake {

using std::chrono::milliseconds;
using Nonce = std::array<std::uint8_t, 32>;

inline constexpr char kMagic[8] = {'1', 'C', 'O', 'P', 'Y', 'L', '0', '1'};
/// Few bytes, for which there is always room.
inline constexpr milliseconds kAtOnce{1000};
inline constexpr std::uint32_t kMostText = 16'384;

// In this order.
struct Greeting {  // listener
  char magic[8];
  Nonce nonce;
};
struct Proof {  // client
  Nonce nonce;
  Digest digest;
};
struct Verdict {  // listener; the text of a pipe's handle follows if the client knows the key
  std::uint32_t text_bytes;
  Digest digest;
};
struct OpenReply {  // client
  std::uint8_t yes;
};

template <class T>
void send(StreamSocket& socket, const T& value) {
  socket.send_all(std::as_bytes(std::span(&value, 1)), kAtOnce);
}

template <class T>
T receive(StreamSocket& socket) {
  T value;
  socket.receive_exactly(std::as_writable_bytes(std::span(&value, 1)), kAtOnce);
  return value;
}

inline Nonce new_nonce() {
  Nonce nonce;
  random_bytes(std::as_writable_bytes(std::span(nonce)));
  return nonce;
}

inline Digest prove(ByteSpan key, std::string_view who, const Nonce& theirs, const Nonce& mine) {
  Bytes message;
  const std::array<ByteSpan, 3> parts{std::as_bytes(std::span(who)), std::as_bytes(std::span(theirs)),
                                      std::as_bytes(std::span(mine))};
  for (const ByteSpan part : parts) message.insert(message.end(), part.begin(), part.end());
  return hmac_sha256(key, message);
}

inline bool is_same(const Digest& a, const Digest& b) {
  return equal_in_constant_time(std::as_bytes(std::span(a)), std::as_bytes(std::span(b)));
}

inline void check_key(ByteSpan key) {
  if (key.empty())
    throw Error(ErrorCode::invalid_argument, "a listener and its clients need a key of at least one byte");
}

inline std::size_t bytes_waiting(const StreamSocket& socket) {
  int bytes = 0;
  return ::ioctl(socket.fd(), FIONREAD, &bytes) == 0 ? static_cast<std::size_t>(bytes) : 0;
}

/// Without overflow: deadlines count nanoseconds.
inline TimePoint until(milliseconds timeout) {
  constexpr milliseconds kLongest = std::chrono::hours(24 * 365 * 100);
  return timeout > kLongest ? kForever : deadline_after(timeout);
}

/// Rounded up, so that waiting so long reaches the deadline.
inline milliseconds whole_ms_left(TimePoint deadline, std::chrono::nanoseconds most) {
  return std::chrono::ceil<milliseconds>(time_left(deadline, most));
}

}  // namespace onecopy::handshake
