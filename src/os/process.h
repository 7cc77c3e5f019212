// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "os/fd.h"

namespace onecopy {

// Thread safety: all functions may be called concurrently.

namespace detail {
/// The process's pid, or 0 in a child that has not asked yet, in memory that a fork wipes. Null before the first call.
inline std::atomic<std::atomic<int>*> known_pid{nullptr};
int ask_for_pid() noexcept;
}  // namespace detail

/// Takes a system call only the first time in a process: called for each tensor that comes or goes.
inline int current_pid() noexcept {
  const std::atomic<int>* const known = detail::known_pid.load(std::memory_order_acquire);
  const int pid = known ? known->load(std::memory_order_relaxed) : 0;
  return pid != 0 ? pid : detail::ask_for_pid();
}
/// The number under which /proc shows the process `pid` of our PID namespace. They differ after `unshare --pid`
/// without a /proc of its own. 0 if /proc does not show it.
int number_in_proc(int pid);
/// Clock ticks from boot to the start of `pid`: with the pid it names one process of this boot. 0 if there is no such
/// process.
std::uint64_t process_start_time(int pid);
/// Changes at every boot of the machine.
std::array<std::uint8_t, 16> boot_id();

/// The number of this process's PID namespace, which no other namespace has while it lives. 0 on kernels without them.
std::uint64_t pid_namespace() noexcept;

/// A descriptor of the process itself, which no later process of its pid can take over. Throws peer_died if there is
/// no such process. If the pid may have been reused before, compare process_start_time() afterwards.
Fd open_pidfd(int pid);
/// True as soon as the process has ended, even before its parent has waited for it. Its memory is
/// unmapped and its descriptors are closed by then. False if the program has closed the descriptor under its owner, as
/// those do that become daemons. Throws invalid_argument for an empty one.
bool has_exited(const Fd& pidfd);

/// The short name (comm) of a process; empty if it is gone.
std::string process_name(int pid);

/// Processors this process may use: affinity mask, and the CPU quota of its cgroups rounded up. At
/// least 1.
int usable_cpus();
/// The processor that the calling thread is on, from 0; it may be on another one a moment later.
int current_cpu() noexcept;

}  // namespace onecopy
