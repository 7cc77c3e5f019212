// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "os/unix_socket.h"

namespace onecopy {

/// A port of this host's loopback interface.
struct LoopbackPort {
  std::uint16_t port = 0;
};

/// Parses "unix:/path", "unix:@name", "tcp:127.0.0.1:0" or "tcp:localhost:0". Throws invalid_argument for everything
/// else.
std::variant<SocketName, LoopbackPort> parse_stream_address(const std::string& address);

}  // namespace onecopy
