// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "onecopy/channel/pipe.h"
#include "onecopy/core/api.h"
#include "onecopy/core/bytes.h"

ONECOPY_API_BEGIN
namespace onecopy {

/// A server that waits at an address for processes of this host and opens a pipe with each one that knows the key. An
/// address is "unix:/path", "unix:@name" or "tcp:127.0.0.1:port" (port 0 picks a free port). Both sides prove that they
/// know the key; the key is never sent.
///
/// Thread safety: one thread at a time. Move-only; the members of a Listener that was moved from throw closed.
class Listener {
 public:
  /// Starts to listen. Throws invalid_argument for any other form of address and for an empty key, system if the
  /// address is taken.
  static Listener listen(const std::string& address, ByteSpan key);
  Listener(Listener&&) noexcept;
  Listener& operator=(Listener&&) noexcept;
  ~Listener();

  /// Returns the address to connect to. A port of 0 is replaced by the port that was picked.
  const std::string& address() const;
  /// Waits for the next client that knows the key. Clients without the key, and on Unix sockets clients of other users,
  /// are refused and counted; a slow client does not delay others. The listener keeps at most 64 clients that have not
  /// proved the key yet (fewer if a third of the process's descriptor limit is less) and drops the oldest beyond that.
  Pipe accept();
  /// Does what accept() does, but returns an empty optional if no client came within the timeout.
  std::optional<Pipe> try_accept(std::chrono::milliseconds timeout);
  /// Returns a descriptor that select, poll and epoll report as readable while try_accept() has work to do. Call
  /// try_accept() with a timeout of zero then; it may return an empty optional, because a client connects in several
  /// steps. The caller must not read from or close the descriptor.
  int ready_fd() const;
  /// Returns the number of clients refused so far. The first refusal is logged as a warning. Any thread may call this
  /// member.
  std::uint64_t refused() const;

 private:
  struct State;
  explicit Listener(std::unique_ptr<State> state) noexcept;
  State& state() const;
  std::unique_ptr<State> state_;
};

/// A connection attempt to a listener, for programs that do other work while they connect. connect() is the blocking
/// form. Thread safety: one thread at a time. Move-only; try_finish() throws closed after a move.
class ConnectionAttempt {
 public:
  /// Starts to connect. Throws invalid_argument for an empty key.
  ConnectionAttempt(const std::string& address, ByteSpan key);
  ConnectionAttempt(ConnectionAttempt&&) noexcept;
  ConnectionAttempt& operator=(ConnectionAttempt&&) noexcept;
  ~ConnectionAttempt();

  /// Returns the connected pipe, or an empty optional if the listener has not answered within the timeout; call again
  /// then. Throws what connect() throws, which ends the attempt.
  std::optional<Pipe> try_finish(std::chrono::milliseconds timeout);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Connects to a listener and returns the other end of the pipe that its accept() returns. Throws peer_died if no
/// process listens at the address, bad_secret if the listener holds another key, other_user if the listener is known to
/// belong to another user, and timeout.
Pipe connect(const std::string& address, ByteSpan key,
             std::chrono::milliseconds timeout = std::chrono::seconds(10));

}  // namespace onecopy
ONECOPY_API_END
