// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

#include "os/fd.h"

namespace onecopy {

/// The max time from the end of a process's sockets to the report of its pidfd: usually microseconds, 50 ms with a GPU.
inline constexpr std::chrono::seconds kDeathTakesAtMost{5};

/// An identity of one process of this boot, which stays valid after its pid is reused.
struct ProcessOrigin {
  int pid = 0;
  std::uint64_t start_time = 0;
};

/// Returns the identity of this process. Throws out_of_descriptors, system.
ProcessOrigin this_process_origin();
/// Returns a descriptor that becomes readable when the process exits; empty if it is gone already. Throws
/// out_of_descriptors, system.
Fd open_pidfd(const ProcessOrigin& origin);
bool is_gone(const ProcessOrigin& origin);

}  // namespace onecopy
