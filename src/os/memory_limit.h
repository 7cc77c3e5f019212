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
  /// The bytes in use, without the file cache, which the kernel would drop first.
  std::uint64_t usage = 0;
  std::string cgroup;  ///< its directory

  std::uint64_t available() const noexcept { return usage < limit ? limit - usage : 0; }
};

/// The limits on memory, read from /proc and the cgroup file systems (v1 and v2). A cgroup kills processes instead of
/// refusing memory, so ask before committing memory.
///
/// Thread safety: all members may be called concurrently. Mount points are read once; the process's place in the
/// hierarchy and all numbers are read at each call (tens of microseconds).
class MemoryLimits {
 public:
  /// Reads the mount points. `root` is put in front of /proc and of all mount points, so that tests can pass a made-up
  /// tree.
  explicit MemoryLimits(std::string root = "");
  ~MemoryLimits();

  /// Returns the tightest limit of all ancestor groups; empty if none has a limit.
  std::optional<MemoryLimit> tightest() const;
  /// Returns MemAvailable and free swap of the whole machine; empty if unknown.
  std::optional<std::uint64_t> machine_available() const;
  /// Throws out_of_memory with the numbers if `bytes` more would exceed a limit or leave less than `margin` below it.
  /// Other processes may reserve memory between this check and the caller's own reservation.
  void require(std::uint64_t bytes, std::uint64_t margin = 0) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Returns how many more bytes of addresses this process may map; empty if RLIMIT_AS is unlimited.
std::optional<std::uint64_t> address_space_left();

/// Returns MemoryLimits::tightest() of this machine.
std::optional<MemoryLimit> memory_limit();
void require_memory(std::uint64_t bytes, std::uint64_t margin = 0);

}  // namespace onecopy
