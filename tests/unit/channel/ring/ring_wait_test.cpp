// SPDX-License-Identifier: Apache-2.0
#include "channel/ring/ring_wait.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "support/eventually.h"

namespace onecopy {
namespace {

TEST(WaitWord, IsAtRestUntilArmedAndAfterAWakeThatFoundNobody) {
  WaitWord word{};
  EXPECT_EQ(word.state(), WaitWord::deserted);
  word.notify_one();
  EXPECT_EQ(word.word.load(), 0U);
  EXPECT_EQ(WaitWord::state_of(word.arm()), WaitWord::asleep);
  word.notify_one();
  EXPECT_EQ(word.state(), WaitWord::deserted);
}

TEST(WaitWord, NeverLetsAWaiterSleepOnAValueThatAWakeHasPassed) {
  WaitWord word{};
  const std::uint32_t armed = word.arm();
  word.notify_one();
  EXPECT_NE(word.word.load(), armed);
  EXPECT_TRUE(sleep_on(word, armed, kForever));
  const std::uint32_t again = word.arm();
  word.notify_all();
  EXPECT_NE(word.word.load(), again);
}

TEST(WaitWord, GivesEachWaiterAFreshValue) {
  WaitWord word{};
  const std::uint32_t first = word.arm();
  EXPECT_NE(word.arm(), first);
}

TEST(SleepOn, SaysWhenAWholeSlicePassedWithoutAWake) {
  WaitWord word{};
  EXPECT_FALSE(sleep_on(word, word.arm(), kForever));
  EXPECT_TRUE(sleep_on(word, word.arm(), Deadline::after(std::chrono::milliseconds(1))));
}

constexpr std::chrono::microseconds kShortSleep{60};
constexpr std::chrono::milliseconds kLongSleep{100};

/// Waits that do not see their condition; how many of them looked at all.
int waits_that_looked(SpinBudget& budget, std::uint32_t waits, std::chrono::nanoseconds slept) {
  int looked = 0;
  for (std::uint32_t i = 0; i < waits; ++i) {
    bool looks = false;
    EXPECT_FALSE(budget.spin([&] {
      looks = true;
      return false;
    }));
    looked += looks;
    budget.note_sleep(slept);
  }
  return looked;
}

bool at_once() { return true; }

TEST(SpinBudget, NobodyLooksWhileTheQueueIsIdle) {
  SpinBudget budget;
  EXPECT_LE(waits_that_looked(budget, 8, kLongSleep), 1);
  EXPECT_EQ(waits_that_looked(budget, 1000, kLongSleep), 0);
  EXPECT_FALSE(budget.spin(at_once));
}

TEST(SpinBudget, AfterShortSleepsItLooksAgainAndLessOftenEachTimeInVain) {
  SpinBudget budget;
  const int first = waits_that_looked(budget, 64, kShortSleep);
  EXPECT_GE(first, 4);
  EXPECT_LE(first, 10);
  waits_that_looked(budget, 1024, kShortSleep);
  const int later = waits_that_looked(budget, 4 * SpinBudget::kRarest, kShortSleep);
  EXPECT_GE(later, 3);
  EXPECT_LE(later, 5);
}

TEST(SpinBudget, TwoThatPutEachOtherToSleepFindOutThatBothAreBusy) {
  SpinBudget budget;
  waits_that_looked(budget, 8, kLongSleep);
  budget.note_sleep(kShortSleep);
  EXPECT_TRUE(budget.spin(at_once)) << "a probe";
  EXPECT_TRUE(testing::eventually([&] {  // at once, if nothing else takes the processor meanwhile
    int looks = 0;
    budget.note_sleep(kShortSleep);
    return budget.spin(at_once) && budget.spin([&] { return ++looks == 200; });
  }));
}

/// A child made by fork() while a thread of its parent's watched never watched again.
TEST(SpinBudget, AChildForgetsThatAThreadOfItsParentsIsWatching) {
  SpinBudget budget;
  std::atomic<bool> watching{false};
  std::atomic<bool> enough{false};
  std::jthread other([&] {
    budget.spin([&] {
      watching = true;
      while (!enough) std::this_thread::yield();
      return true;
    });
  });
  while (!watching) std::this_thread::yield();
  EXPECT_FALSE(budget.spin([] { return true; })) << "one thread at a time";
  budget.forget_turn();
  EXPECT_TRUE(budget.spin([] { return true; }));
  enough = true;
}

TEST(SpinBudget, ASuccessMakesTheNextProbeComeSoon) {
  SpinBudget budget;
  waits_that_looked(budget, 2 * SpinBudget::kRarest, kShortSleep);
  EXPECT_TRUE(testing::eventually([&] {
    budget.note_sleep(kShortSleep);
    return budget.spin(at_once);
  }));
  waits_that_looked(budget, 8, kLongSleep);
  budget.note_sleep(kShortSleep);
  EXPECT_TRUE(budget.spin(at_once));
}

TEST(SpinBudget, ADeadlineCutsALookShort) {
  SpinBudget budget;
  int looks = 0;
  const auto never = [&] { return ++looks, false; };
  EXPECT_FALSE(budget.spin(never, std::chrono::nanoseconds(1)));
  EXPECT_GT(looks, 0);
  EXPECT_LE(looks, 128) << "until the second look at the clock";
}

TEST(Deadline, NeverOverflows) {
  EXPECT_EQ(Deadline::after(std::chrono::nanoseconds::max()), kForever);
  EXPECT_EQ(kForever.left(kSleepSlice), kSleepSlice);
  EXPECT_EQ(kNow.left(kSleepSlice).count(), 0);
  EXPECT_EQ(Deadline::after(std::chrono::hours(1)).left(kSleepSlice), kSleepSlice);
}

}  // namespace
}  // namespace onecopy
