// SPDX-License-Identifier: Apache-2.0
#include "os/memory_limit.h"

#include <gtest/gtest.h>

#include "expect_error.h"
#include "support/temporary_directory.h"

namespace onecopy {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

std::string mebibytes(std::uint64_t count) { return std::to_string(count * kMiB) + "\n"; }

/// A made-up machine with 1000 MiB to spare, and groups of a made-up process.
class MemoryLimitTest : public ::testing::Test {
 protected:
  MemoryLimitTest() {
    machine_.write("proc/meminfo",
                   "MemTotal:        4096000 kB\nMemFree:  1 kB\nMemAvailable:    921600 kB\n"
                   "SwapTotal:  204800 kB\nSwapFree:         102400 kB\n");
    machine_.write("proc/self/mountinfo",
                   "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
                   "31 25 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  }

  void process_is_in(const std::string& membership) { machine_.write("proc/self/cgroup", membership); }

  void group_v2(const std::string& name, const std::string& most, std::uint64_t used, std::uint64_t cache) {
    machine_.write("sys/fs/cgroup" + name + "/memory.max", most);
    machine_.write("sys/fs/cgroup" + name + "/memory.current", mebibytes(used));
    machine_.write("sys/fs/cgroup" + name + "/memory.stat",
                   "anon 1\nfile 2\ninactive_anon 99999999\ninactive_file " + mebibytes(cache));
  }

  void group_v1(const std::string& name, const std::string& most, std::uint64_t used, std::uint64_t cache) {
    machine_.write("sys/fs/cgroup/memory" + name + "/memory.limit_in_bytes", most);
    machine_.write("sys/fs/cgroup/memory" + name + "/memory.usage_in_bytes", mebibytes(used));
    machine_.write("sys/fs/cgroup/memory" + name + "/memory.stat",
                   "inactive_file 1\ntotal_cache 5\ntotal_inactive_file " + mebibytes(cache));
  }

  TemporaryDirectory machine_;
};

TEST_F(MemoryLimitTest, WithoutALimitThereIsNone) {
  process_is_in("0::/a\n");
  group_v2("/a", "max\n", 10, 0);
  const MemoryLimits limits(machine_.path());
  EXPECT_FALSE(limits.tightest());
  EXPECT_NO_THROW(limits.require(500 * kMiB));
}

TEST_F(MemoryLimitTest, Version1WritesAHugeNumberForNoLimit) {
  process_is_in("4:memory:/a\n");
  group_v1("/a", "9223372036854771712\n", 10, 0);
  EXPECT_FALSE(MemoryLimits(machine_.path()).tightest());
}

TEST_F(MemoryLimitTest, TheAncestorThatLeavesLeastIsFoundInVersion2) {
  process_is_in("0::/a/b/c\n");
  group_v2("/a", mebibytes(300), 250, 0);
  group_v2("/a/b", mebibytes(200), 100, 0);
  group_v2("/a/b/c", "max\n", 90, 0);
  const auto limit = MemoryLimits(machine_.path()).tightest();
  ASSERT_TRUE(limit);
  EXPECT_EQ(limit->limit, 300 * kMiB);
  EXPECT_EQ(limit->usage, 250 * kMiB);
  EXPECT_EQ(limit->available(), 50 * kMiB);
  EXPECT_EQ(limit->cgroup, machine_ / "sys/fs/cgroup/a");
}

TEST_F(MemoryLimitTest, TheAncestorThatLeavesLeastIsFoundInVersion1) {
  process_is_in("4:memory:/a/b\n");
  group_v1("", "9223372036854771712\n", 4000, 0);
  group_v1("/a", mebibytes(300), 250, 0);
  group_v1("/a/b", mebibytes(200), 100, 0);
  const auto limit = MemoryLimits(machine_.path()).tightest();
  ASSERT_TRUE(limit);
  EXPECT_EQ(limit->cgroup, machine_ / "sys/fs/cgroup/memory/a");
}

TEST_F(MemoryLimitTest, FileCacheThatWouldBeDroppedIsNotUsage) {
  process_is_in("0::/a\n");
  group_v2("/a", mebibytes(300), 290, 200);
  EXPECT_EQ(MemoryLimits(machine_.path()).tightest()->usage, 90 * kMiB);
  process_is_in("4:memory:/a\n");
  group_v1("/a", mebibytes(300), 290, 150);
  EXPECT_EQ(MemoryLimits(machine_.path()).tightest()->usage, 140 * kMiB);
}

TEST_F(MemoryLimitTest, MoreThanTheGroupHasLeftIsRefusedWithTheNumbers) {
  process_is_in("0::/a\n");
  group_v2("/a", mebibytes(300), 290, 200);
  const MemoryLimits limits(machine_.path());
  EXPECT_NO_THROW(limits.require(210 * kMiB));
  const std::string why = expect_error(ErrorCode::out_of_memory, [&] { limits.require(211 * kMiB); });
  EXPECT_PRED2(contains, why, "211.0 MiB more");
  EXPECT_PRED2(contains, why, machine_ / "sys/fs/cgroup/a");
  EXPECT_PRED2(contains, why, "limit 300.0 MiB");
  EXPECT_PRED2(contains, why, "used 90.0 MiB");
}

TEST_F(MemoryLimitTest, MoreThanTheMachineHasLeftIsRefusedWithTheNumbers) {
  process_is_in("0::/a\n");
  group_v2("/a", mebibytes(3000), 0, 0);
  const MemoryLimits limits(machine_.path());
  EXPECT_EQ(limits.machine_available(), 1000 * kMiB);
  EXPECT_NO_THROW(limits.require(1000 * kMiB));
  const std::string why = expect_error(ErrorCode::out_of_memory, [&] { limits.require(1001 * kMiB); });
  EXPECT_PRED2(contains, why, "1001.0 MiB");
  EXPECT_PRED2(contains, why, "1000.0 MiB left");
  EXPECT_PRED2(contains, why, "MemAvailable");
}

TEST_F(MemoryLimitTest, NewNumbersAndANewGroupAreSeenAtTheNextCall) {
  process_is_in("0::/a\n");
  group_v2("/a", mebibytes(300), 100, 0);
  const MemoryLimits limits(machine_.path());
  EXPECT_EQ(limits.tightest()->available(), 200 * kMiB);
  group_v2("/a", mebibytes(300), 220, 0);
  EXPECT_EQ(limits.tightest()->available(), 80 * kMiB);
  group_v2("/b", mebibytes(70), 0, 0);
  process_is_in("0::/b\n");
  EXPECT_EQ(limits.tightest()->available(), 70 * kMiB);
}

TEST_F(MemoryLimitTest, UsageAboveTheLimitLeavesNothing) {
  process_is_in("0::/a\n");
  group_v2("/a", mebibytes(100), 120, 0);
  EXPECT_EQ(MemoryLimits(machine_.path()).tightest()->available(), 0u);
}

TEST(MemoryLimit, WithoutProcNothingIsRefused) {
  const TemporaryDirectory empty;
  const MemoryLimits limits(empty.path());
  EXPECT_FALSE(limits.tightest());
  EXPECT_FALSE(limits.machine_available());
  EXPECT_NO_THROW(limits.require(~std::uint64_t{0}));
}

TEST(MemoryLimit, ThisMachineHasRoomForAPageAndNotForAllAddresses) {
  EXPECT_NO_THROW(require_memory(4096));
  expect_error(ErrorCode::out_of_memory, [] { require_memory(std::uint64_t{1} << 60); });
  const auto limit = memory_limit();
  if (limit) {
    EXPECT_GE(limit->limit, limit->available());
    EXPECT_FALSE(limit->cgroup.empty());
  }
}

}  // namespace
}  // namespace onecopy
