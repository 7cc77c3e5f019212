// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include "onecopy/core/bytes.h"
#include "os/stream_socket.h"

namespace onecopy::store::ferry {

/// Gives the versions of this user's store to other hosts that know the key: those that are whole, and chunks of those that
/// are still arriving here. Reads versions as any reader does, and changes nothing. `socket`: of TlsListener::listen(). Returns
/// once `is_over` returns true. `rate`: the max bytes per second to all hosts together; 0 for no limit.
void serve_hosts(StreamSocket socket, ByteSpan key, std::uint64_t rate,
                 const std::function<bool()>& is_over);

}  // namespace onecopy::store::ferry
