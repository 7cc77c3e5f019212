// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "onecopy/os/fd.h"

namespace onecopy {

/// Names one process of this boot, also after its pid has been given to another.
struct ProcessOrigin {
  int pid = 0;
  std::uint64_t start_time = 0;
};

/// Throws out_of_descriptors, system.
ProcessOrigin this_process_origin();
/// A descriptor that tells of its exit; none when it is gone already.
Fd open_pidfd(const ProcessOrigin& origin);
bool is_gone(const ProcessOrigin& origin);

}  // namespace onecopy
