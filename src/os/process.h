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
/// The pid of this process, or 0 in a child that has not asked yet, in memory that a fork wipes. The pointer is null
/// before the first call.
inline std::atomic<std::atomic<int>*> known_pid{nullptr};
int ask_for_pid() noexcept;
}  // namespace detail

/// Returns the pid. Only the first call in a process makes a system call, because every tensor that is shared or opened
/// needs it.
inline int current_pid() noexcept {
  const std::atomic<int>* const known = detail::known_pid.load(std::memory_order_acquire);
  const int pid = known ? known->load(std::memory_order_relaxed) : 0;
  return pid != 0 ? pid : detail::ask_for_pid();
}
/// Returns the number under which /proc shows the process `pid` of this PID namespace, or 0 if /proc does not show it.
/// The two differ after `unshare --pid` without a /proc of its own.
int number_in_proc(int pid);
/// Returns the clock ticks from boot to the start of `pid`, which together with the pid identify one process of this
/// boot. Returns 0 if the process does not exist.
std::uint64_t process_start_time(int pid);
/// Returns the boot id, which changes at every boot of the machine.
std::array<std::uint8_t, 16> boot_id();

/// Returns the number of this process's PID namespace, which is unique while the namespace lives. Returns 0 on kernels
/// without namespaces.
std::uint64_t pid_namespace() noexcept;

/// Returns a descriptor of the process, which stays bound to it even if its pid is reused. Throws peer_died if the
/// process does not exist. If the pid may have been reused before the call, compare process_start_time() afterwards.
Fd open_pidfd(int pid);
/// Returns whether the process has ended, even before its parent has waited for it. Its memory is unmapped and its
/// descriptors are closed by then. Returns false if the program has closed the descriptor behind its owner's back, as
/// programs that become daemons do. Throws invalid_argument for an empty descriptor.
bool has_exited(const Fd& pidfd);

/// Returns the short name (comm) of a process; empty if the process is gone.
std::string process_name(int pid);

/// Returns the number of processors this process may use, at least 1: its affinity mask, and the CPU quota of its
/// cgroups rounded up.
int usable_cpus();
/// Returns the processor that the calling thread runs on, from 0; the thread may move at any time.
int current_cpu() noexcept;

}  // namespace onecopy
