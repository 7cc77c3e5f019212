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

/// Does the error say that the called process is not there? Then no socket listens under its name, or only a socket
/// of another user, which took the name after the process had ended.
inline bool is_absent(const Error& error) noexcept {
  return error.code() == ErrorCode::peer_died || error.code() == ErrorCode::other_user;
}

/// Connects to the broker of this public_name(). Never waits for a socket of another user, as far as the kernel tells
/// whose it is. Throws peer_died, other_user, timeout.
UnixSocket dial(const std::string& name, std::chrono::milliseconds patience);

/// The beginning of a connection to another process: it has been greeted, and wakes up to answer.
struct Dial {
  /// Throws peer_died, other_user, timeout.
  Dial(const ProcessId& called, std::chrono::milliseconds patience);

  ProcessId to;
  std::string name;  ///< public_name() of it
  UnixSocket socket;
  PeerCredentials credentials;
  wire::Nonce nonce;
};

/// While one lives, this thread's first connection to that process continues a call that was made earlier. So the
/// called process wakes up while this one makes its own tables. Has no effect if the call fails: the connection that
/// follows reports the reason.
class EarlyDial {
 public:
  explicit EarlyDial(const ProcessId& to) noexcept;
  ~EarlyDial();
  EarlyDial(const EarlyDial&) = delete;
  EarlyDial& operator=(const EarlyDial&) = delete;

  /// Has this thread made a call that no connection has continued yet?
  static bool is_waiting() noexcept;
  /// Empty if this thread has made no call, or a call to another process.
  static std::optional<Dial> take(const ProcessId& to) noexcept;

 private:
  std::optional<Dial> call_;
};

}  // namespace onecopy
