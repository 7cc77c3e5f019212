// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "onecopy/core/error.h"
#include "onecopy/share/handle_fields.h"
#include "os/unix_socket.h"
#include "share/format/wire.h"

namespace onecopy {

/// Does the error say that the process that was called is not there? Nothing listens in its place, or a socket of
/// another user does, which has taken the name of a process that has ended.
inline bool is_absent(const Error& error) noexcept {
  return error.code() == ErrorCode::peer_died || error.code() == ErrorCode::other_user;
}

/// Connects to the broker of this public_name(). Never waits for a socket of another user, as far as the kernel tells
/// whose it is. Throws peer_died, other_user, timeout.
UnixSocket dial(const std::string& name, std::chrono::milliseconds patience);

/// The beginning of a connection to another process: it has been greeted, and wakes up to answer.
struct Call {
  /// Throws peer_died, other_user, timeout.
  Call(const ProcessId& called, std::chrono::milliseconds patience);

  ProcessId to;
  UnixSocket socket;
  PeerCredentials credentials;
  wire::Nonce nonce;
};

/// While one lives, this thread's first connection to that process goes on from a call that was made before
/// anything else: the other wakes up while this process makes its own tables. Does nothing in a process that
/// has them, or when the call fails: the connection that follows says why.
class EarlyCall {
 public:
  EarlyCall(const ProcessId& to, bool has_tables) noexcept;
  ~EarlyCall();
  EarlyCall(const EarlyCall&) = delete;
  EarlyCall& operator=(const EarlyCall&) = delete;

  /// Has this thread called somebody, and not taken it up?
  static bool is_waiting() noexcept;
  /// Empty when this thread has called nobody, or somebody else.
  static std::optional<Call> take(const ProcessId& to) noexcept;

 private:
  std::optional<Call> call_;
};

}  // namespace onecopy
