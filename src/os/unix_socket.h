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

/// The name at which a UnixSocket listens. An abstract name is visible in the whole network namespace and vanishes with
/// the socket. A path lies in a directory of this user that is closed to others (for containers that share it).
struct SocketName {
  std::string text;
  bool abstract = true;
};

/// A message and the descriptors that came with it.
struct Packet {
  Bytes bytes;
  std::vector<Fd> fds;
  bool is_cut = false;  ///< some descriptors are missing, because this process has no room for them
};

/// An AF_UNIX SOCK_SEQPACKET socket, which transfers whole packets in order, with descriptors. Sockets are non-blocking
/// and close-on-exec; sending to a closed peer throws and never raises SIGPIPE.
///
/// Thread safety: sending and receiving may happen concurrently; moving may not. A negative timeout means no limit.
/// Functions that wait resume after signals.
class UnixSocket {
 public:
  static constexpr std::size_t kMaxPacketBytes = std::size_t{192} * 1024;
  static constexpr std::size_t kMaxPacketFds = 253;
  static constexpr int kBacklog = 128;

  UnixSocket() noexcept = default;
  /// Takes over a connected or listening SEQPACKET socket.
  explicit UnixSocket(Fd fd);

  /// Listens at a name. A path's directory is created with mode 0700, or must belong to this user with that mode. A
  /// socket file on which no process listens is replaced. Throws invalid_argument (name too long), other_user
  /// (directory open to others), system (name taken). `is_locked`: the caller holds the lock (flock) of the path's
  /// directory, for which this function otherwise waits up to a second.
  static UnixSocket listen(const SocketName& name, int backlog = kBacklog, bool is_locked = false);
  /// Connects to a name. Throws peer_died if no process listens there, timeout, invalid_argument (name too long). The
  /// caller must check peer().is_our_user before trusting the other side.
  static UnixSocket connect(const SocketName& name, std::chrono::milliseconds timeout);
  static std::pair<UnixSocket, UnixSocket> pair();

  /// Listens again if this process has become another user for good, because the kernel tells peers the user that the
  /// process had when it listened. Waiting connections stay queued. REQUIRES: a listener.
  void follow_user() const;
  /// Accepts a waiting connection; empty if there is none. Throws out_of_descriptors; the connection stays queued then.
  std::optional<UnixSocket> try_accept();

  /// Sends a packet without waiting. Returns false, with nothing sent, if the peer's buffer is full. Throws peer_died,
  /// invalid_argument (empty, or above kMaxPacketBytes or kMaxPacketFds), out_of_descriptors (too many in flight).
  bool try_send(ByteSpan bytes, std::span<const int> fds = {});
  /// Sends a packet, waiting for room. Throws what try_send() throws, and timeout.
  void send(ByteSpan bytes, std::span<const int> fds, std::chrono::milliseconds timeout);

  /// Returns a packet, or nothing if none has arrived. Throws peer_died at the end of the stream, and protocol for
  /// packets above kMaxPacketBytes. Throws out_of_descriptors if RLIMIT_NOFILE kept descriptors out; the packet is lost
  /// then, and the descriptors that arrived are closed.
  std::optional<Packet> try_receive();
  /// As try_receive(), but returns a packet without all its descriptors as cut.
  std::optional<Packet> try_receive_cut();
  /// Polls for up to `max`, letting other threads run in between, for answers that come sooner than a sleeping thread
  /// wakes up.
  std::optional<Packet> try_receive_for(std::chrono::microseconds max);
  /// Waits for a packet. Throws what try_receive() throws, and timeout.
  Packet receive(std::chrono::milliseconds timeout);

  /// Ends what is sent, as closing does, and leaves the socket open to receive.
  void end_sending() noexcept;
  /// Returns whether a packet, or the end of the stream, can be received now.
  bool is_readable() const;
  /// Returns the kernel's memory for packets that were sent and not yet received: about 768 bytes for a small packet. 0
  /// if the kernel does not report it.
  std::size_t unread_bytes() const noexcept;

  PeerCredentials peer() const { return credentials_of(fd_.get()); }
  /// Returns a descriptor of the peer process, which becomes readable when the process exits. Throws peer_died if it is
  /// gone.
  Fd peer_pidfd() const { return pidfd_of_peer(fd_.get()); }

  int fd() const noexcept { return fd_.get(); }
  /// Gives the descriptor to the caller; a path that this listener created stays.
  Fd release() noexcept;
  explicit operator bool() const noexcept { return static_cast<bool>(fd_); }

 private:
  UnixSocket(Fd fd, BoundPath path);

  Fd fd_;
  BoundPath path_;
};

/// Returns the numbers of descriptors, to send them.
std::vector<int> numbers_of(std::span<const Fd> fds);

/// Returns the names of listening abstract sockets that start with `prefix`, sorted and unique, as connect() takes
/// them. Reads /proc/net/unix; empty if that is missing.
std::vector<std::string> list_abstract_names(const std::string& prefix);
/// Returns the user whose SEQPACKET socket listens under this abstract name, even if its queue is full and connect()
/// cannot ask. Empty if no socket listens there, or if the kernel does not report it (before Linux 5.3, in some
/// sandboxes).
std::optional<unsigned> listening_user(const std::string& name);

}  // namespace onecopy
