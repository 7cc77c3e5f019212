// SPDX-License-Identifier: Apache-2.0
// A control group kills a process that exceeds its memory, so the sum of concurrent reservations must stay below.
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "onecopy/share/pin.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "support/child.h"
#include "support/cuda_streams.h"
#include "support/memory_group.h"
#include "support/refusal.h"
#include "support/watchdog.h"

namespace onecopy {
namespace {

using testing::Child;
using testing::cuda_devices;
using testing::expect_refusal;
using testing::JoinedChild;
using testing::MemoryGroup;
using testing::Watchdog;

TEST(MemoryGroup, IsNotExceededByAllocatorsThatFillItAtTheSameTime) {
  const MemoryGroup group(std::uint64_t{400} << 20);
  if (!group) GTEST_SKIP() << MemoryGroup::kObstacle;
  const Watchdog watchdog(2 * Watchdog::kLimit);
  const auto fill_often = [&] {
    group.join();
    for (int round = 0; round < 8; ++round) {
      std::vector<Tensor> tensors;
      expect_refusal(ErrorCode::out_of_memory, {"control group", "kept free"}, [&] {
        for (;;) tensors.push_back(empty(Layout(DType::u8, {48 << 20})));
      });
      tensors.clear();
      collect();
    }
  };
  Child first(fill_often);
  Child second(fill_often);
  JoinedChild third(fill_often);
  EXPECT_EQ(first.join(), 0);
  EXPECT_EQ(second.join(), 0);
}

/// Pinned memory cannot be swapped out, so the rest of the group needs the other half.
TEST(MemoryGroup, HasHalfOfItPinnedAtMost) {
  if (cuda_devices() < 1) GTEST_SKIP() << "no CUDA device on this machine";
  const MemoryGroup group(std::uint64_t{400} << 20);
  if (!group) GTEST_SKIP() << MemoryGroup::kObstacle;
  JoinedChild child([&] {
    group.join();
    ::unsetenv("ONECOPY_PIN_LIMIT");
    const AllocateOptions pinned{.pinned = true};
    std::vector<Tensor> tensors;
    for (int i = 0; i < 4; ++i) tensors.push_back(empty(Layout(DType::u8, {48 << 20}), pinned));
    expect_refusal(ErrorCode::out_of_memory, {"209715200", "ONECOPY_PIN_LIMIT"},
                   [&] { empty(Layout(DType::u8, {48 << 20}), pinned); });
    tensors.front().as<char>()[0] = 1;  // those before stay as they are
    EXPECT_TRUE(is_pinned(tensors.front()));
  });
}

}  // namespace
}  // namespace onecopy
