// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "onecopy/share/handle_fields.h"
#include "os/unix_socket.h"

namespace onecopy {

/// What others may know of a process without its handles: a one-way image of its id, 32 hex digits.
std::string public_name(const ProcessId& id);

/// Where the broker of a process listens: an abstract socket, or one in ONECOPY_RUNTIME_DIR when that
/// is set (for containers that share a directory but no network namespace).
/// Throws invalid_argument when that is a relative path: elsewhere it would be another directory.
SocketName socket_name(const std::string& public_name);
/// Unlinks the sockets that killed processes of this user left in ONECOPY_RUNTIME_DIR.
void remove_abandoned_sockets() noexcept;
/// public_name() of every process of this host that listens, of any user. Throws when ONECOPY_RUNTIME_DIR is there
/// and cannot be read.
std::vector<std::string> listening_names();

}  // namespace onecopy
