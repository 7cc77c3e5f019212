// SPDX-License-Identifier: Apache-2.0
// The bytes of a connection to a member on another host: a receiver of frames gives out whole messages, or refuses. The
// input is payloads of frames, which are sealed as a process that knows the key does it: a kind, a length of 16 bits, that
// many bytes. A first byte with the highest bit: the rest of the input goes over the connection as it is.
#include <sys/socket.h>

#include <algorithm>
#include <optional>

#include "fuzz_input.h"
#include "onecopy/core/error.h"
#include "os/fd.h"
#include "os/log.h"
#include "rpc/far/far_link.h"

namespace onecopy::fuzz {
namespace {

using namespace rpc;

constexpr std::uint64_t kMostBytes = 1 << 20;

class Connection {
 public:
  Connection() {
    int fds[2];
    require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0,
            "there are sockets");
    theirs_ = Fd(fds[0]);
    ours_ = Fd(fds[1]);
    receiver_.emplace(ours_.get(), key_, true, kMostBytes);
  }

  void send_sealed(FrameKind kind, ByteSpan payload) {
    const FrameHead head = seal_.head(kind, payload.size());
    const ShortMac mac = seal_.mac(head, payload);
    send(std::as_bytes(std::span(&head, 1)));
    send(payload);
    send(std::as_bytes(std::span(&mac, 1)));
    receive();
  }
  void send(ByteSpan bytes) {
    require(::send(theirs_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) ==
                static_cast<ssize_t>(bytes.size()),
            "the socket has room");
  }
  void receive() {
    receiver_->receive({[](ByteSpan) {}, [](Message&& message) { check(message); }});
  }

 private:
  static void check(const Message& message) {
    for (const Tensor& tensor : message.tensors)
      require(tensor.layout().extent_bytes() == 0 || tensor.data() != nullptr, "a tensor has memory");
  }

  const Digest key_{1, 2, 3};
  Fd theirs_, ours_;
  FrameSeal seal_{key_};
  std::optional<FrameReceiver> receiver_;
};

void run(ByteSpan rest) {
  Connection connection;
  constexpr std::size_t kHead = 3;
  while (rest.size() >= kHead) {
    if ((rest[0] & std::byte{0x80}) != std::byte{0}) {
      connection.send(rest.subspan(1));
      return connection.receive();
    }
    const auto size = std::min<std::size_t>(load<std::uint16_t>(rest.data() + 1), rest.size() - kHead);
    connection.send_sealed(static_cast<FrameKind>(rest[0]), rest.subspan(kHead, size));
    rest = rest.subspan(kHead + size);
  }
}

}  // namespace
}  // namespace onecopy::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace onecopy;
  set_log_sink([](LogLevel, std::string_view) {});
  if (size > 16384) return 0;
  fuzz::accepted({ErrorCode::protocol}, [&] { return fuzz::run(fuzz::span_of(data, size)), true; });
  return 0;
}
