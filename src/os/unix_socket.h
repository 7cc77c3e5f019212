// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "onecopy/core/bytes.h"
#include "os/bound_path.h"
#include "os/fd.h"
#include "os/peer.h"

namespace onecopy {

/// Where a UnixSocket listens. An abstract name is seen by the whole network namespace and gone with the socket. A
/// path's directory is ours and closed to others (for containers that share it).
struct SocketName {
  std::string text;
  bool abstract = true;
};

/// One message and the descriptors that came with it.
struct Packet {
  Bytes bytes;
  std::vector<Fd> fds;
};

/// An AF_UNIX SOCK_SEQPACKET socket: whole packets in order, with descriptors. Non-blocking and
/// close-on-exec; sending to a closed peer is an exception, never SIGPIPE.
///
/// Thread safety: sending and receiving may happen concurrently; moving may not.
/// A negative timeout means no limit. Functions that wait go on after signals.
class UnixSocket {
 public:
  static constexpr std::size_t kMaxPacketBytes = std::size_t{192} * 1024;
  static constexpr std::size_t kMaxPacketFds = 253;

  UnixSocket() noexcept = default;
  /// Takes over a connected or listening SEQPACKET socket.
  explicit UnixSocket(Fd fd);

  /// A path's directory is created with mode 0700 and must belong to us with that mode. A socket file on which no
  /// process listens any more is replaced. Throws invalid_argument (name too long), other_user (directory open to
  /// others), system (name taken).
  static UnixSocket listen(const SocketName& name, int backlog = 128);
  /// Throws peer_died if no process listens there, timeout, invalid_argument (name too long). Look at
  /// peer().is_our_user before trusting the other side.
  static UnixSocket connect(const SocketName& name, std::chrono::milliseconds timeout);
  static std::pair<UnixSocket, UnixSocket> pair();

  /// Empty if no connection waits. Throws out_of_descriptors; the connection stays queued then.
  std::optional<UnixSocket> try_accept();

  /// Returns false if the peer's buffer is full; nothing was sent then. Throws peer_died, invalid_argument (empty,
  /// above kMaxPacketBytes or kMaxPacketFds), out_of_descriptors (too many in flight).
  bool try_send(ByteSpan bytes, std::span<const int> fds = {});
  /// Waits for room. Throws timeout as well.
  void send(ByteSpan bytes, std::span<const int> fds, std::chrono::milliseconds timeout);

  /// Empty if no packet is there. Throws peer_died at the end of the stream, protocol for packets above
  /// kMaxPacketBytes. Throws out_of_descriptors if RLIMIT_NOFILE kept descriptors out: the packet is lost then, and
  /// the received descriptors are closed.
  std::optional<Packet> try_receive();
  /// Tries again and again, letting other threads run in between: for answers that come sooner than a sleeping thread
  /// wakes up.
  std::optional<Packet> try_receive_for(std::chrono::microseconds most);
  /// Waits for a packet. Throws timeout as well.
  Packet receive(std::chrono::milliseconds timeout);

  /// Is there a packet, or the end of the stream, to be received now?
  bool is_readable() const;
  /// The kernel's memory for packets that were sent and not yet received: some 768 bytes for a small one. 0 if the
  /// kernel does not tell.
  std::size_t unread_bytes() const noexcept;

  PeerCredentials peer() const { return credentials_of(fd_.get()); }
  /// A descriptor of the peer process itself, readable at its exit. Throws peer_died if it is gone.
  Fd peer_pidfd() const { return pidfd_of_peer(fd_.get()); }

  int fd() const noexcept { return fd_.get(); }
  /// Gives the descriptor to the caller; a path this listener made stays.
  Fd release() noexcept;
  explicit operator bool() const noexcept { return static_cast<bool>(fd_); }

 private:
  UnixSocket(Fd fd, BoundPath path);

  Fd fd_;
  BoundPath path_;
};

/// Names of listening abstract sockets that start with `prefix`, sorted, each once, as connect() takes them. Reads
/// /proc/net/unix; empty if that is missing.
std::vector<std::string> list_abstract_names(const std::string& prefix);
/// The user whose SEQPACKET socket listens under this abstract name, also if its queue is full and connect() cannot
/// ask. Empty if no socket listens there, or the kernel does not tell (before Linux 5.3, in some sandboxes).
std::optional<unsigned> listening_user(const std::string& name);

}  // namespace onecopy
