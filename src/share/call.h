// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

#include "onecopy/os/unix_socket.h"
#include "share/wire.h"

namespace onecopy {

/// The beginning of a connection to another process: it has been greeted and wakes up to answer, which takes as
/// long as much of what the caller has to do meanwhile.
struct Call {
  /// Throws peer_died, timeout.
  explicit Call(const ProcessId& called);

  ProcessId to;
  UnixSocket socket;
  wire::Nonce nonce;
  std::chrono::steady_clock::time_point since;
};

}  // namespace onecopy
