// SPDX-License-Identifier: Apache-2.0
#include "share/silent_processes.h"

#include <fmt/format.h>

#include "onecopy/core/error.h"
#include "onecopy/os/process.h"

namespace onecopy {

void SilentProcesses::add(const ProcessId& process, int pid) {
  const ProcessOrigin origin{pid, process_start_time(pid)};
  const std::lock_guard lock(mutex_);
  processes_[process] = origin;
}

void SilentProcesses::remove(const ProcessId& process) {
  const std::lock_guard lock(mutex_);
  processes_.erase(process);
}

ProcessOrigin SilentProcesses::find(const ProcessId& process) const {
  const std::lock_guard lock(mutex_);
  const auto at = processes_.find(process);
  return at == processes_.end() ? ProcessOrigin{} : at->second;
}

void SilentProcesses::refuse_stopped(const ProcessId& process) const {
  const auto [pid, start_time] = find(process);
  if (pid == 0 || !is_stopped(pid) || process_start_time(pid) != start_time) return;
  throw Error(
      ErrorCode::timeout,
      fmt::format("process {}, which holds this memory, did not answer an earlier call and is still "
                  "stopped (SIGSTOP, a debugger); open the handle again once it runs",
                  pid));
}

}  // namespace onecopy
