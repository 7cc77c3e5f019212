// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "onecopy/share/handle_fields.h"
#include "os/unix_socket.h"

namespace onecopy {

/// The name of a process for others without its handles: a one-way image of its id, 32 hex digits.
std::string public_name(const ProcessId& id);

/// Where the broker of a process listens: an abstract socket, or one in ONECOPY_RUNTIME_DIR if that is set (for
/// containers that share a directory but no network namespace). Throws invalid_argument if that is a relative path,
/// which would name different directories.
SocketName socket_name(const std::string& public_name);
/// Unlinks the sockets that killed processes of this user left in ONECOPY_RUNTIME_DIR.
void remove_abandoned_sockets() noexcept;
/// public_name() of every process of this host that listens, of any user. Throws if ONECOPY_RUNTIME_DIR is there and
/// cannot be read.
std::vector<std::string> listening_names();

}  // namespace onecopy
