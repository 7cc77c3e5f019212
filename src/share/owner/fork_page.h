// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>

#include "os/mapping.h"
#include "os/unix_socket.h"
#include "share/owner/claim_memory.h"

namespace onecopy {

/// What a child that is about to be forked will hold with one owner: its claim page, in which it
/// counts as holding everything until it says otherwise, and its end of a connection.
struct ForkPage {
  Mapping memory;
  UnixSocket socket;
};

/// Announces a child in the page of the process that forks, makes its ForkPage and sends it to the
/// owner. Nothing when that fails, the owner is gone, or has some twenty such pages still to read: it is stopped, and
/// descriptors on their way count for the whole user. Never waits.
std::optional<ForkPage> send_child_page(Claims mine, UnixSocket& owner) noexcept;

/// In the child: tells the owner who it is. False when the owner is gone.
bool greet_owner(UnixSocket& owner) noexcept;

/// What a forked child cannot do without. When it fails the child ends and says why: without claims of its own it
/// would read memory that its owner uses again.
void or_end_child(const std::function<void()>& f) noexcept;

}  // namespace onecopy
