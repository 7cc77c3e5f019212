// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace onecopy {

// Thread safety: all functions may be called concurrently.

/// Returns what a process with this content of /proc/PID/cgroup ends with, for people: "the container 0123456789ab", "the job
/// 42 of Slurm", "the unit ssh.service", "the login session-3.scope". Empty if the process has a control group for which
/// nothing is known to end it.
std::string owner_of_cgroup(const std::string& membership);

/// Returns owner_of_cgroup() for a process, or "this container" for one whose control groups are hidden by a container.
std::string what_ends(int pid);

}  // namespace onecopy
