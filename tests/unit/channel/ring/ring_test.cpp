// SPDX-License-Identifier: Apache-2.0
#include "channel/ring/ring.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <array>
#include <set>
#include <thread>
#include <vector>

#include "os/memfd.h"
#include "support/child.h"
#include "unit/channel/ring/ring_testing.h"

namespace onecopy {
namespace {

TEST(Ring, DeliversItemsInTheirOrder) {
  Ring ring(RingOptions{});
  for (std::uint64_t i = 0; i < 100; ++i) EXPECT_EQ(put_number(ring, i), i);
  EXPECT_EQ(ring.size(), 100U);
  for (std::uint64_t i = 0; i < 100; ++i) EXPECT_EQ(take_number(ring), i);
  EXPECT_EQ(ring.size(), 0U);
  EXPECT_EQ(ring.head(), 100U);
}

TEST(Ring, TakesItemsOfNoBytesAndOfTheMost) {
  Ring ring(RingOptions{});
  for (const std::size_t size : {std::size_t{0}, kMaxItemBytes}) {
    ring.put([&](std::uint64_t, std::span<std::byte>) { return size; });
    std::size_t seen = 1;
    ring.take([&](RingItem item) {
      seen = item.bytes.size();
      return true;
    });
    EXPECT_EQ(seen, size);
  }
}

TEST(Ring, RefusesAnItemThatIsTooLong) {
  Ring ring(RingOptions{});
  const auto write = [](std::uint64_t, std::span<std::byte>) { return kMaxItemBytes + 1; };
  EXPECT_EQ(error_of([&] { ring.put(write); }), ErrorCode::invalid_argument);
  EXPECT_EQ(put_number(ring, 7), 0U);
  EXPECT_EQ(take_number(ring), 7U);
}

TEST(Ring, HasNothingOfAPutThatThrew) {
  Ring ring(RingOptions{});
  const auto write = [](std::uint64_t, std::span<std::byte>) -> std::size_t {
    throw Error(ErrorCode::stale_handle, "made up");
  };
  EXPECT_EQ(error_of([&] { ring.put(write); }), ErrorCode::stale_handle);
  EXPECT_EQ(ring.size(), 0U);
  EXPECT_EQ(take_number(ring, kNow), std::nullopt);
}

TEST(Ring, KeepsAnItemThatItsGetterDeferred) {
  Ring ring(RingOptions{});
  put_number(ring, 5);
  put_number(ring, 6);
  EXPECT_EQ(ring.take([](RingItem) { return false; }), TakeResult::deferred);
  EXPECT_EQ(
      error_of([&] { ring.take([](RingItem) -> bool { throw Error(ErrorCode::owner_died, "made up"); }); }),
      ErrorCode::owner_died);
  EXPECT_EQ(ring.head(), 0U);
  EXPECT_EQ(take_number(ring), 5U);
  EXPECT_EQ(take_number(ring), 6U);
}

TEST(Ring, AdvancesTheHeadOnlyAfterTheItemWasAccepted) {
  Ring ring(RingOptions{});
  put_number(ring, 5);
  std::uint64_t head_while_accepting = 99;
  ring.take([&](RingItem item) {
    head_while_accepting = ring.head();
    return item.position == 0;
  });
  EXPECT_EQ(head_while_accepting, 0U);
  EXPECT_EQ(ring.head(), 1U);
}

TEST(Ring, GrowsWithoutAConsumerAndGivesTheMemoryBack) {
  Ring ring(RingOptions{});
  constexpr std::uint64_t kItems = 100'000;
  for (std::uint64_t i = 0; i < kItems; ++i) ASSERT_EQ(put_number(ring, i), i);
  EXPECT_GE(RingWatcher(ring).committed(), kItems * sizeof(RingSlot));
  for (std::uint64_t i = 0; i < kItems; ++i) ASSERT_EQ(take_number(ring), i);
  RingWatcher(ring).trim();
  EXPECT_LE(RingWatcher(ring).committed(), (RingChunks::kKeep + 1) * kChunkBytes);
  for (std::uint64_t i = 0; i < 5000; ++i) ASSERT_EQ(put_number(ring, i), kItems + i);
  for (std::uint64_t i = 0; i < 5000; ++i) ASSERT_EQ(take_number(ring), i);
}

TEST(Ring, GivesMemoryBackWhileItIsBusyButShallow) {
  Ring ring(RingOptions{});
  for (std::uint64_t i = 0; i < 64 * kItemsPerChunk; ++i) put_number(ring, i);
  while (ring.size() > 0) take_number(ring);
  const std::uint64_t deep = RingWatcher(ring).committed();
  for (std::uint64_t i = 0; i < 64 * kItemsPerChunk; ++i) {
    put_number(ring, i);
    ASSERT_EQ(take_number(ring), i);
  }
  EXPECT_LT(RingWatcher(ring).committed(), deep / 4);
}

TEST(Ring, StaysInTwoChunksWhileItIsShallow) {
  Ring ring(RingOptions{});
  for (std::uint64_t i = 0; i < 20 * kItemsPerChunk; ++i) {
    put_number(ring, i);
    if (i >= 10) {
      ASSERT_EQ(take_number(ring), i - 10);
    }
  }
  EXPECT_EQ(RingWatcher(ring).committed(), 2 * kChunkBytes);
}

TEST(Ring, RefusesAndLosesNothingWhenItsRangeIsFull) {
  Ring ring(RingOptions{.range = 4 * kChunkBytes});
  constexpr std::uint64_t kFull = 4 * kItemsPerChunk;
  for (std::uint64_t i = 0; i < kFull; ++i) ASSERT_EQ(put_number(ring, i), i);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(error_of([&] { put_number(ring, 0); }), ErrorCode::out_of_memory);
  for (std::uint64_t i = 0; i < kItemsPerChunk; ++i) ASSERT_EQ(take_number(ring), i);
  EXPECT_EQ(put_number(ring, kFull), kFull);
  for (std::uint64_t i = kItemsPerChunk; i <= kFull; ++i) ASSERT_EQ(take_number(ring), i);
}

TEST(Ring, RefusesPutsBeyondItsBoundUntilOneIsTaken) {
  Ring ring(RingOptions{.max_items = 3});
  for (std::uint64_t i = 0; i < 3; ++i) EXPECT_EQ(put_number(ring, i, kNow), i);
  EXPECT_EQ(put_number(ring, 3, kNow), std::nullopt);
  EXPECT_EQ(put_number(ring, 3, Deadline::after(std::chrono::milliseconds(5))), std::nullopt);
  EXPECT_EQ(take_number(ring), 0U);
  EXPECT_EQ(put_number(ring, 3, kNow), 3U);
  EXPECT_EQ(put_number(ring, 4, kNow), std::nullopt);
}

TEST(Ring, TimesOutNotBeforeTheDeadline) {
  Ring ring(RingOptions{});
  EXPECT_EQ(take_number(ring, kNow), std::nullopt);
  const Deadline deadline = Deadline::after(std::chrono::milliseconds(20));
  EXPECT_EQ(take_number(ring, deadline), std::nullopt);
  EXPECT_GE(std::chrono::steady_clock::now(), deadline);
}

TEST(Ring, DrainsAfterCloseAndThenSaysClosed) {
  Ring ring(RingOptions{});
  put_number(ring, 1);
  put_number(ring, 2);
  ring.close();
  ring.close();
  EXPECT_EQ(error_of([&] { put_number(ring, 3); }), ErrorCode::closed);
  EXPECT_EQ(take_number(ring), 1U);
  EXPECT_EQ(take_number(ring, kNow), 2U);
  EXPECT_EQ(error_of([&] { take_number(ring, kNow); }), ErrorCode::closed);
  EXPECT_EQ(error_of([&] { take_number(ring); }), ErrorCode::closed);
}

/// All that Ring does while a thread sleeps, in both ways of waiting.
class WaitingRing : public ::testing::TestWithParam<Ring::WaitMode> {
 protected:
  static void wait_until_asleep(const Ring& ring, std::size_t word_offset) {
    const Mapping memory = Mapping::of(ring.fd(), sizeof(RingHeader), Access::read_only);
    const auto* word = memory.as<const std::atomic<std::uint32_t>>(word_offset);
    while ((word->load() & 1) == 0) std::this_thread::yield();
  }
};

TEST_P(WaitingRing, WakesAGetterWhenAnItemComes) {
  Ring ring(RingOptions{});
  ring.set_wait_mode(GetParam());
  std::thread getter([&] { EXPECT_EQ(take_number(ring, in_good_time()), 9U); });
  wait_until_asleep(ring, offsetof(RingHeader, items));
  put_number(ring, 9);
  getter.join();
}

TEST_P(WaitingRing, WakesAPutterWhenThereIsSpace) {
  Ring ring(RingOptions{.max_items = 1});
  ring.set_wait_mode(GetParam());
  put_number(ring, 1);
  std::thread putter([&] { EXPECT_EQ(put_number(ring, 2, in_good_time()), 1U); });
  wait_until_asleep(ring, offsetof(RingHeader, space));
  EXPECT_EQ(take_number(ring), 1U);
  putter.join();
  EXPECT_EQ(take_number(ring), 2U);
}

TEST_P(WaitingRing, WakesEverybodyWhenItIsClosed) {
  Ring empty(RingOptions{});
  Ring full(RingOptions{.max_items = 1});
  put_number(full, 1);
  std::vector<std::thread> waiters;
  for (int i = 0; i < 3; ++i) {
    waiters.emplace_back([&] { EXPECT_EQ(error_of([&] { take_number(empty); }), ErrorCode::closed); });
    waiters.emplace_back([&] { EXPECT_EQ(error_of([&] { put_number(full, 2); }), ErrorCode::closed); });
  }
  wait_until_asleep(empty, offsetof(RingHeader, items));
  wait_until_asleep(full, offsetof(RingHeader, space));
  empty.close();
  full.close();
  for (std::thread& waiter : waiters) waiter.join();
}

TEST_P(WaitingRing, GivesMemoryBackWhileItsGetterSleeps) {
  Ring ring(RingOptions{});
  ring.set_wait_mode(GetParam());
  for (std::uint64_t i = 0; i < 20 * kItemsPerChunk; ++i) put_number(ring, i);
  while (ring.size() > 0) take_number(ring);
  std::thread getter([&] { take_number(ring, in_good_time()); });
  while (RingWatcher(ring).committed() > (RingChunks::kKeep + 1) * kChunkBytes) std::this_thread::yield();
  put_number(ring, 1);
  getter.join();
}

TEST_P(WaitingRing, PassesEachItemOfManyThreadsOnceAndInOrder) {
  for (const std::uint64_t bound : {0, 7, 3000}) {
    Ring ring(RingOptions{.max_items = bound});
    ring.set_wait_mode(GetParam());
    constexpr std::uint64_t kThreads = 3, kEach = 5000;
    std::vector<std::thread> threads;
    std::array<std::vector<std::uint64_t>, kThreads> taken;
    for (std::uint64_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (std::uint64_t i = 0; i < kEach; ++i) put_number(ring, t * kEach + i);
      });
      threads.emplace_back([&, t] {
        for (std::uint64_t i = 0; i < kEach; ++i) taken[t].push_back(take_number(ring).value_or(kTorn));
      });
    }
    for (std::thread& thread : threads) thread.join();
    std::set<std::uint64_t> all;
    for (const auto& numbers : taken) {
      std::array<std::uint64_t, kThreads> next{};
      for (const std::uint64_t number : numbers) {
        ASSERT_LT(number, kThreads * kEach);
        all.insert(number);
        EXPECT_GE(number % kEach + 1, next[number / kEach]);
        next[number / kEach] = number % kEach + 1;
      }
    }
    EXPECT_EQ(all.size(), kThreads * kEach);
  }
}

INSTANTIATE_TEST_SUITE_P(, WaitingRing, ::testing::Values(Ring::WaitMode::adaptive, Ring::WaitMode::block),
                         [](const auto& mode) {
                           return mode.param == Ring::WaitMode::block ? "Blocking" : "Adaptive";
                         });

TEST(Ring, IsSharedThroughItsDescriptor) {
  Ring ring(RingOptions{.max_items = 2});
  Ring same(ring.fd().duplicate());
  EXPECT_EQ(same.max_items(), 2U);
  put_number(ring, 1);
  put_number(same, 2);
  EXPECT_EQ(put_number(same, 3, kNow), std::nullopt);
  EXPECT_EQ(take_number(same), 1U);
  EXPECT_EQ(take_number(ring), 2U);
}

TEST(Ring, PassesItemsBetweenProcesses) {
  Ring there(RingOptions{});
  Ring back(RingOptions{});
  constexpr std::uint64_t kItems = 3000;
  testing::Child child([&] {
    for (std::uint64_t i = 0; i < kItems; ++i)
      put_number(back, take_number(there, in_good_time()).value_or(kTorn) + 1);
  });
  for (std::uint64_t i = 0; i < kItems; ++i) {
    put_number(there, i);
    ASSERT_EQ(take_number(back, in_good_time()), i + 1);
  }
  EXPECT_EQ(child.join(), 0);
}

TEST(Ring, DeliversWhatAnExitedProcessPut) {
  Ring ring(RingOptions{});
  testing::Child child([&] {
    for (std::uint64_t i = 0; i < 2000; ++i) put_number(ring, i);
  });
  EXPECT_EQ(child.join(), 0);
  for (std::uint64_t i = 0; i < 2000; ++i) ASSERT_EQ(take_number(ring, kNow), i);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Ring, TakesASmallerRangeWhenAddressSpaceIsLimited) {
  testing::Child child([] {
    const rlimit limit{1UL << 30, 1UL << 30};
    ASSERT_EQ(::setrlimit(RLIMIT_AS, &limit), 0);
    Ring ring(RingOptions{});
    EXPECT_LT(file_size(ring.fd()), 1UL << 30);
    put_number(ring, 4);
    EXPECT_EQ(take_number(ring), 4U);
  });
  EXPECT_EQ(child.join(), 0);
}
#endif

}  // namespace
}  // namespace onecopy
