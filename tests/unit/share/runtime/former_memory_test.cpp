// SPDX-License-Identifier: Apache-2.0
#include "share/owner/pools.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <vector>

#include "support/eventually.h"
#include "support/limits.h"

namespace onecopy {
namespace {

using namespace std::chrono_literals;
using testing::eventually;
using Use = FormerMemory::Use;

std::size_t resident_bytes() {
  std::size_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

TEST(FormerMemory, IsKeptForASecond) {
  EventLoop loop;
  FormerMemory former(loop);
  const auto start = FormerMemory::Clock::now() + 1h;  // the timer of the loop finds nothing that is over
  auto first = std::make_shared<int>(1), second = std::make_shared<int>(2);
  const std::weak_ptr<int> seen_first = first, seen_second = second;
  former.keep(std::move(first), 100, Use::shared, start);
  former.keep(std::move(second), 200, Use::shared, start + 500ms);
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
  former.keep(std::move(memory), 100, Use::shared);
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
  former.keep(std::move(first), kMuch, Use::shared, start);
  EXPECT_FALSE(seen_first.expired());
  former.keep(std::move(second), kMuch, Use::shared, start);
  EXPECT_TRUE(seen_first.expired());
  EXPECT_FALSE(seen_second.expired());
}

/// A producer at 750 MB/s would otherwise have a second of its traffic as private memory.
TEST(FormerMemory, OfItemsIsAFewMegabytesBesideTheNewest) {
  EventLoop loop;
  FormerMemory former(loop);
  const auto start = FormerMemory::Clock::now() + 1h;
  constexpr std::uint64_t kItem = std::uint64_t{5} << 20;
  for (int i = 0; i < 100; ++i) former.keep(std::make_shared<int>(i), kItem, Use::item, start);
  EXPECT_GT(former.bytes(), FormerMemory::kMaxOfItems - kItem);
  EXPECT_LE(former.bytes(), FormerMemory::kMaxOfItems);
  former.keep(std::make_shared<int>(0), 4 * FormerMemory::kMaxOfItems, Use::item, start);
  EXPECT_EQ(former.bytes(), 4 * FormerMemory::kMaxOfItems);
  former.expire(start + FormerMemory::kKeptOfItems);
  EXPECT_EQ(former.bytes(), 0u);
}

TEST(FormerMemory, ThatTheUserSharedStaysWhileItemsPass) {
  EventLoop loop;
  FormerMemory former(loop);
  const auto start = FormerMemory::Clock::now() + 1h;
  auto shared = std::make_shared<int>(1);
  const std::weak_ptr<int> seen = shared;
  former.keep(std::move(shared), 100, Use::shared, start);
  for (int i = 0; i < 10; ++i)
    former.keep(std::make_shared<int>(i), FormerMemory::kMaxOfItems, Use::item, start);
  former.expire(start + 900ms);
  EXPECT_FALSE(seen.expired());
}

#ifdef __GLIBC__
/// malloc keeps what lies below a live block, here the last of many, until it is trimmed.
TEST(FormerMemory, GoesBackToTheSystemWhenNothingIsKept) {
  if (testing::kSanitized) GTEST_SKIP() << "a sanitizer has its own allocator";
  EventLoop loop;
  FormerMemory former(loop);
  const auto start = FormerMemory::Clock::now() + 1h;
  constexpr std::size_t kBlock = 64 * 1024, kBlocks = 1024;
  for (std::size_t i = 0; i < kBlocks; ++i)
    former.keep(std::make_shared<std::vector<char>>(kBlock, 'x'), kBlock, Use::shared, start);
  const auto last = std::make_unique<std::vector<char>>(kBlock, 'x');
  const std::size_t before = resident_bytes();  // the loop's own timer may be the one that trims
  EXPECT_EQ(former.expire(start + 1s), FormerMemory::kTrimAfter);
  EXPECT_EQ(former.expire(start + 2s), Timer::Pause());
  EXPECT_TRUE(eventually([&] { return resident_bytes() + kBlock * kBlocks / 2 < before; }));
}
#endif

}  // namespace
}  // namespace onecopy
