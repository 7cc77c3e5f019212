// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <utility>

#include "onecopy/core/device.h"
#include "onecopy/share/handle_fields.h"
#include "os/unix_socket.h"

namespace onecopy {

/// The name of a segment for processes that do not know its owner's id: public_name() of the owner, and the segment's
/// number at the owner.
using SegmentKey = std::pair<std::string, std::uint32_t>;

/// The name of an allocation in the block table of its owner.
struct BlockName {
  std::uint32_t block = 0;
  std::uint64_t generation = 0;
  auto operator<=>(const BlockName&) const = default;
};

/// Returns the name of a process for others that do not have its handles: 32 hex digits of a one-way hash of its id.
std::string public_name(const ProcessId& id);

/// Returns where the broker of a process listens: an abstract socket, or one in ONECOPY_RUNTIME_DIR if that is set (for
/// containers that share a directory but no network namespace). Throws invalid_argument if that is a relative path,
/// which would name different directories.
SocketName socket_name(const std::string& public_name);
/// Unlinks the sockets that killed processes of this user left in ONECOPY_RUNTIME_DIR.
void remove_abandoned_sockets() noexcept;
/// Returns public_name() of every process of this host that listens, of any user. Throws if ONECOPY_RUNTIME_DIR is
/// there and cannot be read.
std::vector<std::string> listening_names();

}  // namespace onecopy
