// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>

#include "onecopy/os/unix_socket.h"
#include "onecopy/share/handle_fields.h"
#include "share/wire.h"

namespace onecopy {

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
/// has them, or when the call fails: whoever connects will find out why.
class EarlyCall {
 public:
  explicit EarlyCall(const ProcessId& to) noexcept;
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
