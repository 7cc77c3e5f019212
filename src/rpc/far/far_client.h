// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <list>
#include <optional>
#include <vector>

#include "channel/connect/handshake.h"
#include "os/poller.h"
#include "os/stream_socket.h"
#include "os/unshared_descriptor.h"
#include "rpc/address.h"
#include "rpc/far/frame.h"

/// How two processes of different hosts prove to each other that they know the group's key, with the messages of a
/// Listener and its client (channel/connect/handshake.h).
namespace onecopy::rpc {

/// Clients of a listening socket that have not proved themselves yet, side by side.
/// Thread safety: none of its own: the far thread's.
class FarClients {
 public:
  /// One whose two ends have proved themselves.
  struct Connection {
    StreamSocket socket;
    FrameKeys keys;
    UnsharedDescriptor unshared;
  };
  /// Adds each client's descriptor to the poller under `token`.
  FarClients(StreamSocket& listener, ByteSpan key, Poller& poller, std::uint64_t token)
      : listener_(listener), key_(key), poller_(poller), token_(token) {}

  /// Reads the clients' bytes. Returns the clients that have proved themselves since.
  std::vector<Connection> serve();
  bool is_empty() const noexcept { return clients_.empty(); }

 private:
  struct Client {
    StreamSocket socket;
    UnsharedDescriptor unshared{socket.fd()};
    handshake::Nonce nonce = make_nonce<handshake::Nonce>();
    Deadline deadline = Deadline::after(kTimeout);
    std::array<std::byte, sizeof(handshake::Proof)> heard{};
    std::size_t heard_bytes = 0;
  };
  static constexpr std::chrono::seconds kTimeout{10};

  void accept_new();
  void greet(StreamSocket socket);
  /// False when the client is over.
  bool hear(Client& client);
  std::optional<Connection> judge(Client& client);

  StreamSocket& listener_;
  const ByteSpan key_;
  Poller& poller_;
  const std::uint64_t token_;
  std::list<Client> clients_;
  std::uint64_t refused_ = 0;
};

/// Connects to a member's listener. Throws peer_died, timeout, bad_secret.
FarClients::Connection prove_to(const HostPort& listener, ByteSpan key, Deadline deadline);

/// The first frame of a client: the member that it wants to reach, and its own address.
Bytes encode_hello(const Address& to, const Address& own);
/// The sender's address. Throws protocol when it wants another process than `own`.
Address decode_hello(ByteSpan hello, const Address& own);

}  // namespace onecopy::rpc
