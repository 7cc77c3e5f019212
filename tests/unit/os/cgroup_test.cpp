// SPDX-License-Identifier: Apache-2.0
#include "os/cgroup.h"

#include <gtest/gtest.h>

#include <limits>

#include "support/temporary_directory.h"

namespace onecopy {
namespace {

constexpr char kV2[] = "30 25 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
constexpr char kV1Memory[] = "31 25 0:27 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n";
constexpr char kV1Cpu[] = "32 25 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n";

class CgroupTest : public ::testing::Test {
 protected:
  void process_is_in(const std::string& membership, const std::string& mounts) const {
    root_.write("proc/self/cgroup", membership);
    root_.write("proc/self/mountinfo", "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n" + mounts);
  }

  /// Paths below the made-up root.
  std::vector<std::string> directories(const std::string& controller) const {
    const CgroupTree tree(root_.path());
    std::vector<std::string> paths;
    for (const auto& directory : tree.directories(tree.membership(), controller))
      paths.push_back(directory.path.substr(root_.path().size()) + (directory.v2 ? " v2" : " v1"));
    return paths;
  }

  TemporaryDirectory root_;
};

using Paths = std::vector<std::string>;

TEST_F(CgroupTest, FindsAllAncestorsInVersion2) {
  process_is_in("0::/a.slice/b.scope\n", kV2);
  EXPECT_EQ(directories("memory"),
            (Paths{"/sys/fs/cgroup/a.slice/b.scope v2", "/sys/fs/cgroup/a.slice v2", "/sys/fs/cgroup v2"}));
}

TEST_F(CgroupTest, FindsTheHierarchyOfTheControllerInVersion1) {
  process_is_in("5:cpu,cpuacct:/c\n4:memory:/a/b\n1:name=systemd:/z\n", std::string(kV1Cpu) + kV1Memory);
  EXPECT_EQ(directories("memory"), (Paths{"/sys/fs/cgroup/memory/a/b v1", "/sys/fs/cgroup/memory/a v1",
                                          "/sys/fs/cgroup/memory v1"}));
  EXPECT_EQ(directories("cpu"),
            (Paths{"/sys/fs/cgroup/cpu,cpuacct/c v1", "/sys/fs/cgroup/cpu,cpuacct v1"}));
}

TEST_F(CgroupTest, LooksAtBothVersionsWhenTheyAreMixed) {
  process_is_in("4:memory:/a\n0::/b\n",
                std::string(kV1Memory) + "33 25 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  EXPECT_EQ(directories("memory"), (Paths{"/sys/fs/cgroup/memory/a v1", "/sys/fs/cgroup/memory v1",
                                          "/sys/fs/cgroup/unified/b v2", "/sys/fs/cgroup/unified v2"}));
}

TEST_F(CgroupTest, InAContainerThePathStartsAtTheMountedGroup) {
  process_is_in("4:memory:/docker/abc/inner\n",
                "31 25 0:27 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
  EXPECT_EQ(directories("memory"), (Paths{"/sys/fs/cgroup/memory/inner v1", "/sys/fs/cgroup/memory v1"}));
}

TEST_F(CgroupTest, OutsideTheMountedGroupTheMountPointIsLookedAt) {
  process_is_in("4:memory:/other\n",
                "31 25 0:27 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
  EXPECT_EQ(directories("memory"), (Paths{"/sys/fs/cgroup/memory v1"}));
  process_is_in("0::/../sibling\n", kV2);
  EXPECT_EQ(directories("memory"), (Paths{"/sys/fs/cgroup v2"}));
}

TEST_F(CgroupTest, MountPointsMayHaveSpacesAndBrokenEscapes) {
  process_is_in("0::/a\n", "30 25 0:26 / /sys/my\\040groups\\9xyz\\04 rw - cgroup2 cgroup2 rw\n");
  EXPECT_EQ(directories("memory"), (Paths{"/sys/my groups\\9xyz\\04/a v2", "/sys/my groups\\9xyz\\04 v2"}));
}

TEST_F(CgroupTest, WithoutProcOrWithNonsenseThereAreNone) {
  EXPECT_TRUE(directories("memory").empty());
  process_is_in("nonsense\n::\n0:\n\n", "30 25 - cgroup2\nshort\n");
  EXPECT_TRUE(directories("memory").empty());
}

TEST_F(CgroupTest, TheSmallestQuotaOfAllGroupsCounts) {
  process_is_in("0::/a/b\n", kV2);
  root_.write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  root_.write("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  EXPECT_DOUBLE_EQ(cpu_quota(CgroupTree(root_.path())), 1.5);
}

TEST_F(CgroupTest, QuotasOfVersion1AreRead) {
  process_is_in("5:cpu,cpuacct:/c\n", kV1Cpu);
  root_.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  root_.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cpu_quota(CgroupTree(root_.path())), std::numeric_limits<double>::infinity());
  root_.write("sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_quota_us", "50000\n");
  root_.write("sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_period_us", "100000\n");
  EXPECT_DOUBLE_EQ(cpu_quota(CgroupTree(root_.path())), 0.5);
}

}  // namespace
}  // namespace onecopy
