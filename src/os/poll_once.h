// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <span>

namespace onecopy {

/// Waits for one of a few descriptors, as poll(2) does, for up to `timeout` milliseconds; -1 means no limit. Returns how
/// many are ready: none after the timeout, and none after a signal. Throws out_of_descriptors if RLIMIT_NOFILE is below the
/// number of entries, though the descriptors are open.
int poll_once(std::span<pollfd> entries, int timeout);

}  // namespace onecopy
