// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

#include "os/fd.h"

namespace onecopy {

/// Between the end of a process's sockets and its pidfd's report lie microseconds, on a GPU 50 ms.
inline constexpr std::chrono::seconds kDeathTakesAtMost{5};

/// Names one process of this boot, also after its pid has been given to another.
struct ProcessOrigin {
  int pid = 0;
  std::uint64_t start_time = 0;
};

/// Throws out_of_descriptors, system.
ProcessOrigin this_process_origin();
/// A descriptor that tells of its exit; empty if it is gone already. Throws out_of_descriptors, system.
Fd open_pidfd(const ProcessOrigin& origin);
bool is_gone(const ProcessOrigin& origin);

}  // namespace onecopy
