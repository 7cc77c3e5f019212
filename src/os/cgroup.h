// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace onecopy {

/// A control group, by the directory that contains its files.
struct CgroupDirectory {
  std::string path;
  bool v2 = false;
};

/// The control groups of this process, in v1, v2 and mixed hierarchies.
///
/// Thread safety: const members may be called concurrently. Mount points are read once.
class CgroupTree {
 public:
  /// Reads the mount points. `root` is put in front of /proc and of all mount points, so that tests can pass a made-up
  /// tree.
  explicit CgroupTree(std::string root);

  /// Returns the content of /proc/self/cgroup, which changes when the process is moved.
  std::string membership() const;
  /// Returns the groups that control this process for `controller` ("memory", "cpu"): its own group first, then all
  /// visible ancestors.
  std::vector<CgroupDirectory> directories(const std::string& membership,
                                           const std::string& controller) const;

 private:
  struct Mount {
    std::string group;  ///< the group that is mounted, "/" for all
    std::string path;
    std::string controllers;  ///< e.g. ",cpu,cpuacct," for v1; empty for v2
    bool v2 = false;
  };

  static std::optional<Mount> parse_mount(const std::string& line);
  void append(std::vector<CgroupDirectory>& directories, const std::string& group, bool v2,
              const std::string& controller) const;

  std::string root_;
  std::vector<Mount> mounts_;
};

/// Returns the number in a file; empty if the file is missing or contains "max" or anything but a number.
std::optional<std::uint64_t> read_number(const std::string& path);

/// Returns how many processors' worth of time all groups allow; infinity without a quota.
double cpu_quota(const CgroupTree& tree);

}  // namespace onecopy
