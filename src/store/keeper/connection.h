// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <utility>

#include "os/unix_socket.h"
#include "store/format/message.h"

namespace onecopy::store {

/// A client of the worker. Thread safety: none.
struct Connection {
  explicit Connection(UnixSocket connected) : socket(std::move(connected)), pid(socket.peer().pid) {}

  UnixSocket socket;
  PacketJoiner joiner;
  const int pid;
  const std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
  peer::Gate gate{kProtocol};
  bool is_client = false;              ///< the secret is proved
  std::optional<WaitForChange> watch;  ///< a question whose answer is pending
  std::optional<Open> open;            ///< another one
};

}  // namespace onecopy::store
