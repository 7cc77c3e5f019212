// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "onecopy/channel/pipe.h"
#include "onecopy/core/bytes.h"

namespace onecopy {

/// Waits at an address for processes of this host that know the key, and makes a pipe with each. Addresses:
/// "unix:/path", "unix:@name" and "tcp:127.0.0.1:port" (port 0: any free one). Both sides prove that they know the
/// key; it is never sent.
///
/// Thread safety: one thread at a time. Move-only.
class Listener {
 public:
  /// Throws invalid_argument for other addresses and empty keys, system if the address is taken.
  static Listener listen(const std::string& address, ByteSpan key);
  Listener(Listener&&) noexcept;
  Listener& operator=(Listener&&) noexcept;
  ~Listener();

  /// The address to connect to, with the real port.
  const std::string& address() const noexcept;
  /// The next client that knows the key. Other clients do not hold it up: clients without the key, and on Unix
  /// sockets those of other users, are refused and counted. At most 64 unproved clients are kept at a time, or a
  /// third of the process's descriptor limit; beyond that, the oldest are dropped.
  Pipe accept();
  /// Returns an empty optional if no client came until the timeout.
  std::optional<Pipe> try_accept(std::chrono::milliseconds timeout);
  /// A descriptor that select, poll and epoll find readable while try_accept() has something to do: call it then with a
  /// timeout of zero, which may return no pipe, because a client connects in several steps. Do not read or close it.
  int ready_fd() const;
  /// Clients that were refused so far. The first is a warning in the log. Any thread.
  std::uint64_t refused() const noexcept;

 private:
  struct State;
  explicit Listener(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

/// A connection attempt to a listener: connect() for programs that have other work in between. Thread safety: one
/// thread at a time. Move-only.
class ConnectionAttempt {
 public:
  /// Throws invalid_argument for an empty key.
  ConnectionAttempt(const std::string& address, ByteSpan key);
  ConnectionAttempt(ConnectionAttempt&&) noexcept;
  ConnectionAttempt& operator=(ConnectionAttempt&&) noexcept;
  ~ConnectionAttempt();

  /// The other end of the pipe of accept(). Empty if the listener has not answered by then: call it again. Throws as
  /// connect() does, and is over then.
  std::optional<Pipe> try_finish(std::chrono::milliseconds timeout);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The other end of the pipe of accept(). Throws peer_died if no process listens there, bad_secret if the listener
/// has another key, other_user if the listener is known to be another user's, timeout.
Pipe connect(const std::string& address, ByteSpan key,
             std::chrono::milliseconds timeout = std::chrono::seconds(10));

}  // namespace onecopy
