// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "os/fd.h"

namespace onecopy {

/// The ways in which processes use a ring. Each role is one byte of the ring's file, on which its holders have a lock.
enum class Role : std::uint8_t {
  user,
  end_0,  ///< an end of a pipe
  end_1,
  producer,  ///< a process that has put an item into a queue that ends with its producers
};

/// Takes a role, which is held until the returned descriptor is closed in every process that has it. Forked children
/// hold the role, too; exit, death and exec release it. The descriptor has an open file of its own. Throws
/// out_of_descriptors, system.
Fd hold_role(const Fd& ring, Role role);

/// Releases the role. `held` is a descriptor from hold_role(), and stays open.
void release_role(const Fd& held, Role role) noexcept;
/// Takes a released role again. Throws system.
void hold_role_again(const Fd& held, Role role);

/// Returns whether a process holds the role. Does not count holders through this open file from hold_role().
bool is_role_held(const Fd& ring, Role role) noexcept;

}  // namespace onecopy
