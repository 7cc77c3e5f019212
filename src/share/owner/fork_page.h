// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>

#include "os/mapping.h"
#include "os/unix_socket.h"
#include "share/owner/claim_memory.h"

namespace onecopy {

/// The claims that a coming child will have with one owner: its claim page and its end of a connection. In the page
/// the child counts as holding every block until it has copied its claims.
struct ForkPage {
  Mapping memory;
  UnixSocket socket;
};

/// Announces a child in the page of the process that forks, makes its ForkPage and sends it to the owner. Empty if
/// that fails, or the owner is gone, or some twenty such pages wait unread. The owner is stopped in that case, and
/// descriptors on their way count for the whole user. Never waits.
std::optional<ForkPage> send_child_page(Claims mine, UnixSocket& owner) noexcept;

/// In the child: sends the owner its pid. Returns false if the owner is gone.
bool greet_owner(UnixSocket& owner) noexcept;

/// Runs a step that a forked child cannot do without. If it fails, the child ends with a message: without claims of
/// its own it would read memory that its owner uses again.
void or_end_child(const std::function<void()>& f) noexcept;

}  // namespace onecopy
