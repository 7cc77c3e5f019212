// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>

#include "core/point.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "support/eventually.h"
#include "support/watchdog.h"

namespace onecopy {
namespace {

std::atomic<bool> giving_back{false};
std::atomic<bool> go_on{false};

void stop_while_giving_back(const char* name) noexcept {
  if (std::strcmp(name, "pool.decommit") != 0) return;
  giving_back = true;
  go_on.wait(false);
}

Tensor bytes(std::int64_t count) { return empty(Layout(DType::u8, {count})); }

TEST(Trim, KeepsNobodyFromAllocating) {
  testing::Watchdog watchdog;
  const Tensor kept = bytes(1 << 20);
  point_hook = &stop_while_giving_back;
  bytes(16 << 20);
  ASSERT_TRUE(testing::eventually([] { return giving_back.load(); }))
      << "by the watch thread, after a second";
  for (const std::int64_t count : {10, 100'000, 20 << 20, 40 << 20})
    EXPECT_EQ(storage(bytes(count)).size(), static_cast<std::size_t>(count));
  EXPECT_GT(stats().live_bytes, 0u);
  point_hook = nullptr;
  go_on = true;
  go_on.notify_all();
}

TEST(Trim, SaysHowMuchItGaveBackAndLeavesWhatIsInUse) {
  trim();
  const Tensor kept = bytes(48 << 20);
  bytes(64 << 20);  // and goes
  EXPECT_GE(trim(kCpu), std::uint64_t{64} << 20);
  EXPECT_EQ(trim(), 0u) << "there is nothing more";
  EXPECT_GE(stats().bytes_shared, std::uint64_t{48} << 20);
  kept.as<char>()[kept.nbytes() - 1] = 1;
}

TEST(Trim, OfOneDeviceLeavesTheOthersIdleMemory) {
  trim();
  bytes(64 << 20);
  EXPECT_EQ(trim(Device{DeviceType::cuda, 0}), 0u);
  EXPECT_GE(trim(), std::uint64_t{64} << 20);
}

}  // namespace
}  // namespace onecopy
