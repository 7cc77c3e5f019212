// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "onecopy/os/mapping.h"
#include "onecopy/os/unix_socket.h"
#include "share/claim_memory.h"

namespace onecopy {

/// What a child that is about to be forked will hold with one owner: its claim page, in which it
/// counts as holding everything until it says otherwise, and its end of a connection.
struct ForkPage {
  Mapping memory;
  UnixSocket socket;
};

/// Makes a ForkPage, announces it in the page of the process that forks, and sends it to the owner.
/// Nothing when the owner is gone. Never waits for an answer.
std::optional<ForkPage> send_child_page(Claims mine, UnixSocket& owner);

/// In the child: tells the owner who it is. False when the owner is gone.
bool greet_owner(UnixSocket& owner) noexcept;

}  // namespace onecopy
