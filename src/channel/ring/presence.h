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

/// Declares this role until the descriptor is closed in every process that has it. Forked children keep it up; exit,
/// death and exec end it without further action. The descriptor is of an open file of its own. Throws
/// out_of_descriptors, system.
Fd play(const Fd& ring, Role role);

/// Ends that for a descriptor from play(), which stays open.
void stop_playing(const Fd& played, Role role) noexcept;
/// Plays again. Throws system.
void play_again(const Fd& played, Role role);

/// Does any process play it, except holders of this very open file from play()?
bool is_played(const Fd& ring, Role role) noexcept;

}  // namespace onecopy
