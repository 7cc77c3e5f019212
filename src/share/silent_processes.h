// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <mutex>

#include "onecopy/share/handle_fields.h"
#include "share/process_origin.h"

namespace onecopy {

/// Processes that let a first call wait too long: while one is stopped, it is not waited for again.
///
/// Thread safety: all members may be called concurrently.
class SilentProcesses {
 public:
  void add(const ProcessId& process, int pid);
  void remove(const ProcessId& process);
  /// Throws timeout when the process is one, and is stopped.
  void refuse_stopped(const ProcessId& process) const;

 private:
  ProcessOrigin find(const ProcessId& process) const;

  mutable std::mutex mutex_;
  std::map<ProcessId, ProcessOrigin> processes_;
};

}  // namespace onecopy
