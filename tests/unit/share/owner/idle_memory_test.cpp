// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"

namespace onecopy {
namespace {

using namespace std::chrono_literals;

bool eventually_below(std::uint64_t bytes) {
  const auto deadline = std::chrono::steady_clock::now() + 30s;
  while (stats().bytes_shared > bytes) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(10ms);
  }
  return true;
}

/// The tensors were not shared, and no one calls collect() or anything else.
TEST(IdleMemory, GoesBackToTheSystemByItself) {
  collect();
  const std::uint64_t before = stats().bytes_shared + (1 << 20);
  for (const std::int64_t bytes : {std::int64_t{8} << 20, std::int64_t{64} << 20}) {
    for (int round = 0; round < 2; ++round) {
      Tensor tensor = empty(Layout(DType::u8, {bytes}));
      ASSERT_GT(stats().bytes_shared, before);
      tensor.release();
      EXPECT_TRUE(eventually_below(before)) << bytes << " bytes stay, round " << round;
    }
  }
}

}  // namespace
}  // namespace onecopy
