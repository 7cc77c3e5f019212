// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace onecopy {

/// The control group that leaves this process the least memory.
struct MemoryLimit {
  std::uint64_t limit = 0;
  /// Bytes charged, without file cache that the kernel would drop first.
  std::uint64_t usage = 0;
  std::string cgroup;  ///< its directory

  std::uint64_t available() const noexcept { return usage < limit ? limit - usage : 0; }
};

/// Answers how much memory is left, from /proc and the cgroup file systems (v1 and v2). A cgroup kills
/// instead of refusing, so ask before committing memory.
///
/// Thread safety: all members may be called concurrently. Mount points are read once; the process's
/// place in the hierarchy and all numbers are read at each call (tens of microseconds).
class MemoryLimits {
 public:
  /// `root` stands in front of /proc and of all mount points: tests give a made-up tree.
  explicit MemoryLimits(std::string root = "");
  ~MemoryLimits();

  /// The tightest of all ancestor groups; empty if none has a limit.
  std::optional<MemoryLimit> tightest() const;
  /// MemAvailable and free swap of the whole machine; empty if unknown.
  std::optional<std::uint64_t> machine_available() const;
  /// Throws out_of_memory with the numbers if `bytes` more would exceed a limit, or leave less than `margin` below
  /// it. Others may reserve memory between this look and the caller's own reservation.
  void require(std::uint64_t bytes, std::uint64_t margin = 0) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// MemoryLimits of this machine.
std::optional<MemoryLimit> memory_limit();
void require_memory(std::uint64_t bytes, std::uint64_t margin = 0);

}  // namespace onecopy
