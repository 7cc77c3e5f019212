// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "os/fd.h"

namespace onecopy {

/// The ways in which processes use a ring. Each is one byte of its file that they hold a lock on.
enum class Role : std::uint8_t {
  user,
  end_0,  ///< of a pipe
  end_1,
};

/// Holds this role until the descriptor is closed in every process that has it. Forked children hold it on; exit,
/// death and exec end it without further action. The descriptor is of an open file of its own. Throws
/// out_of_descriptors, system.
Fd hold_role(const Fd& ring, Role role);

/// Gives the role up. `held` is a descriptor from hold_role(), and stays open.
void release_role(const Fd& held, Role role) noexcept;
/// Takes it again. Throws system.
void hold_role_again(const Fd& held, Role role);

/// Returns true if a process holds the role; holders of this very open file from hold_role() do not count.
bool is_role_held(const Fd& ring, Role role) noexcept;

}  // namespace onecopy
