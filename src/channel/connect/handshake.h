// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/ioctl.h>

#include <chrono>
#include <span>

#include "onecopy/core/bytes.h"
#include "onecopy/core/error.h"
#include "os/deadline.h"
#include "os/random.h"
#include "os/stream_socket.h"
#include "peer/mutual_proof.h"

/// The messages between a listener and its client until they have a pipe. Both prove that they know the key
/// (peer/mutual_proof.h).
namespace onecopy::handshake {

using std::chrono::milliseconds;
using Nonce = NonceOf<32>;

inline constexpr char kMagic[8] = {'1', 'C', 'O', 'P', 'Y', 'L', '0', '1'};
/// The patience for sending a message of few bytes, for which the socket always has room.
inline constexpr milliseconds kAtOnce{1000};
inline constexpr std::uint32_t kMaxText = 16'384;

// The messages are sent in this order.
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

inline void check_key(ByteSpan key) {
  if (key.empty())
    throw Error(ErrorCode::invalid_argument, "a listener and its clients need a key of at least one byte");
}

inline std::size_t bytes_waiting(const StreamSocket& socket) {
  int bytes = 0;
  return ::ioctl(socket.fd(), FIONREAD, &bytes) == 0 ? static_cast<std::size_t>(bytes) : 0;
}

}  // namespace onecopy::handshake
