// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>

#include "os/deadline.h"
#include "os/unix_socket.h"
#include "store/format/message.h"
#include "store/format/store_directory.h"

namespace onecopy::store {

/// A connection to the keeper, which has proved that it knows the secret. Thread safety: none.
class Link {
 public:
  /// Connects to the keeper in the first directory that has one. Throws peer_died if no keeper listens, timeout, bad_secret,
  /// other_user, version_mismatch.
  static Link connect(const StoreDirectories& directories, Deadline deadline);

  const Welcome& welcome() const noexcept { return welcome_; }
  /// Returns the directory in which the keeper listens.
  const std::string& home() const noexcept { return home_; }
  /// Sends a question and returns the answer, which may be a `refused`. Throws peer_died, timeout, after which the link
  /// cannot be used.
  Packet request(const Bytes& question, std::span<const int> fds, Deadline deadline);
  void send(const Bytes& message, Deadline deadline) {
    socket_.send(message, {}, deadline.whole_ms_left(kLongest));
  }
  /// Sends a message without waiting. Returns false if the socket has no room.
  bool try_send(const Bytes& message) { return socket_.try_send(message); }
  /// Waits for the answer to a question that was sent with try_send(). After a timeout the caller may wait again.
  Packet receive(Deadline deadline);
  /// Returns whether the keeper has closed the link. REQUIRES: no answer is pending.
  bool is_closed() const { return socket_.is_readable(); }
  int fd() const noexcept { return socket_.fd(); }
  /// Gives the socket to the caller. The link cannot be used afterwards.
  UnixSocket release() noexcept { return std::move(socket_); }
  /// Returns a descriptor of the keeper's worker, which becomes readable when the process ends.
  Fd worker() const { return socket_.peer_pidfd(); }

 private:
  static constexpr std::chrono::hours kLongest{24};

  explicit Link(UnixSocket socket) : socket_(std::move(socket)) {}
  static Link connect_in(const StoreDirectory& directory, Deadline deadline);
  void greet(ByteSpan secret, Deadline deadline);

  UnixSocket socket_;
  PacketJoiner joiner_;
  Welcome welcome_;
  std::string home_;
};

/// Returns the limits of the keeper; nothing if there is no keeper, or one of an earlier version. Throws what
/// Link::connect() throws.
std::optional<KeptLimits> ask_limits(const StoreDirectories& directories, Deadline deadline);

}  // namespace onecopy::store
