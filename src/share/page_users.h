// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

namespace onecopy {

/// A file in memory as /proc/<pid>/maps shows it.
struct MappedFile {
  const char* name;
  std::uint64_t inode;
};

/// May the process still map it? True when it cannot be seen.
bool maps_file(int pid, const MappedFile& file);

/// Watches out for processes that use our memory without our knowledge, by a file of ours that all of them map. It
/// takes long to look at all processes, so that is done less and less often.
/// Thread safety: used by one thread.
class UnseenUsers {
 public:
  /// Not `visible`: processes of another namespace, of which nothing is ever known.
  explicit UnseenUsers(bool visible) : visible_(visible) {}

  bool are_visible() const noexcept { return visible_; }
  /// Does nobody map the file any more but this process and those that are known? False until that was seen twice:
  /// one that forked and ended during a look may have been missed.
  bool are_all_gone(const MappedFile& file, const std::function<bool(int pid)>& is_known);

 private:
  using Clock = std::chrono::steady_clock;

  const bool visible_;
  Clock::time_point next_look_{};
  std::chrono::milliseconds pause_{20};
  int times_gone_ = 0;
};

}  // namespace onecopy
