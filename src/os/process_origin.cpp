// SPDX-License-Identifier: Apache-2.0
#include "os/process_origin.h"

#include <cerrno>

#include "onecopy/core/error.h"
#include "os/process.h"

namespace onecopy {

ProcessOrigin this_process_origin() {
  const int pid = current_pid();
  errno = 0;
  const std::uint64_t start_time = process_start_time(pid);
  if (start_time == 0) throw_errno("cannot read /proc for when this process started", errno);
  return {pid, start_time};
}

Fd open_pidfd(const ProcessOrigin& origin) {
  if (origin.pid == 0) return {};  // the number is unknown
  try {
    Fd pidfd = open_pidfd(origin.pid);
    errno = 0;
    const std::uint64_t start_time = process_start_time(origin.pid);
    if (start_time == origin.start_time) return pidfd;
    if (start_time == 0 && !has_exited(pidfd))
      throw_errno("cannot read /proc for when a process started", errno);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::peer_died) throw;
  }
  return {};
}

bool is_gone(const ProcessOrigin& origin) {
  const Fd pidfd = open_pidfd(origin);
  return !pidfd || has_exited(pidfd);
}

}  // namespace onecopy
