// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <fstream>
#include <string>

#include "support/eventually.h"

namespace onecopy::testing {

/// A control group of its own for a test's processes, with a limit of memory, in whichever hierarchy there is.
class MemoryGroup {
 public:
  static constexpr const char* kObstacle = "needs root and a control group with a memory controller";

  explicit MemoryGroup(std::uint64_t limit) {
    const std::string name = "/onecopy-test-" + std::to_string(::getpid());
    try_make("/sys/fs/cgroup" + name, "/memory.max", limit);
    if (path_.empty()) try_make("/sys/fs/cgroup/memory" + name, "/memory.limit_in_bytes", limit);
  }
  MemoryGroup& operator=(MemoryGroup&&) = delete;
  ~MemoryGroup() {
    if (!path_.empty()) {
      EXPECT_TRUE(eventually([&] { return ::rmdir(path_.c_str()) == 0; }));
    }
  }
  /// Returns whether the group could be made; kObstacle otherwise says why a test is skipped.
  explicit operator bool() const noexcept { return !path_.empty(); }
  /// Moves this process into the group.
  void join() const { ASSERT_TRUE(std::ofstream(path_ + "/cgroup.procs") << ::getpid() << std::endl); }
  /// Kills all processes of the group, as a runtime does that ends a container.
  void kill() const {
    if (std::ofstream(path_ + "/cgroup.kill") << 1 << std::endl) return;
    EXPECT_TRUE(eventually([&] {
      std::ifstream processes(path_ + "/cgroup.procs");
      bool is_empty = true;
      for (int pid = 0; processes >> pid; is_empty = false) ::kill(pid, SIGKILL);
      return is_empty;
    }));
  }

 private:
  void try_make(const std::string& path, const char* file, std::uint64_t limit) {
    if (::mkdir(path.c_str(), 0755) != 0) return;
    if (::access((path + file).c_str(), W_OK) == 0 && (std::ofstream(path + file) << limit << std::endl))
      path_ = path;
    else ::rmdir(path.c_str());
  }

  std::string path_;
};

}  // namespace onecopy::testing
