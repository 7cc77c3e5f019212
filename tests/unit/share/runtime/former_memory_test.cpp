// SPDX-License-Identifier: Apache-2.0
#include "share/owner/pools.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>

#include "support/eventually.h"

namespace onecopy {
namespace {

using namespace std::chrono_literals;
using testing::eventually;

TEST(FormerMemory, IsKeptForASecond) {
  EventLoop loop;
  FormerMemory former(loop);
  const auto start = FormerMemory::Clock::now() + 1h;  // the timer of the loop finds nothing that is over
  auto first = std::make_shared<int>(1), second = std::make_shared<int>(2);
  const std::weak_ptr<int> seen_first = first, seen_second = second;
  former.keep(std::move(first), 100, start);
  former.keep(std::move(second), 200, start + 500ms);
  EXPECT_EQ(former.bytes(), 300u);
  EXPECT_EQ(former.expire(start + 900ms), 100ms);
  EXPECT_FALSE(seen_first.expired());
  EXPECT_EQ(former.expire(start + 1s), 500ms);
  EXPECT_TRUE(seen_first.expired());
  EXPECT_FALSE(seen_second.expired());
  EXPECT_EQ(former.expire(start + 2s), Timer::Pause());
  EXPECT_TRUE(seen_second.expired());
  EXPECT_EQ(former.bytes(), 0u);
}

TEST(FormerMemory, GoesByItself) {
  EventLoop loop;
  FormerMemory former(loop);
  auto memory = std::make_shared<int>(1);
  const std::weak_ptr<int> seen = memory;
  former.keep(std::move(memory), 100);
  EXPECT_TRUE(eventually([&] { return seen.expired(); }));
}

/// Half of the address space is more than any machine has left.
TEST(FormerMemory, GoesEarlyIfItIsMuchExceptTheNewest) {
  EventLoop loop;
  FormerMemory former(loop);
  const auto start = FormerMemory::Clock::now() + 1h;
  auto first = std::make_shared<int>(1), second = std::make_shared<int>(2);
  const std::weak_ptr<int> seen_first = first, seen_second = second;
  constexpr std::uint64_t kMuch = std::uint64_t{1} << 62;
  former.keep(std::move(first), kMuch, start);
  EXPECT_FALSE(seen_first.expired());
  former.keep(std::move(second), kMuch, start);
  EXPECT_TRUE(seen_first.expired());
  EXPECT_FALSE(seen_second.expired());
}

}  // namespace
}  // namespace onecopy
