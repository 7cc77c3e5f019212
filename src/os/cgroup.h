// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace onecopy {

/// One control group, as the directory where its files are.
struct CgroupDirectory {
  std::string path;
  bool v2 = false;
};

/// Where the control groups of this process are, in v1, v2 and mixed hierarchies.
///
/// Thread safety: const members may be called concurrently. Mount points are read once.
class CgroupTree {
 public:
  /// `root` stands in front of /proc and of all mount points: tests give a made-up tree.
  explicit CgroupTree(std::string root);

  /// Content of /proc/self/cgroup: changes when the process is moved.
  std::string membership() const;
  /// The groups that control this process for `controller` ("memory", "cpu"): its own first, then
  /// all ancestors that can be seen.
  std::vector<CgroupDirectory> directories(const std::string& membership,
                                           const std::string& controller) const;

 private:
  struct Mount {
    std::string group;  ///< the group that is mounted, "/" for all
    std::string path;
    std::string controllers;  ///< v1: ",cpu,cpuacct,"; v2: empty
    bool v2 = false;
  };

  static std::optional<Mount> parse_mount(const std::string& line);
  void append(std::vector<CgroupDirectory>& directories, const std::string& group, bool v2,
              const std::string& controller) const;

  std::string root_;
  std::vector<Mount> mounts_;
};

/// The number in a file; empty if the file is missing, or holds "max" or no number.
std::optional<std::uint64_t> read_number(const std::string& path);

/// Processors' worth of time that all groups allow; infinity without a quota.
double cpu_quota(const CgroupTree& tree);

}  // namespace onecopy
