// SPDX-License-Identifier: Apache-2.0
#include "channel/ring_wait.h"

#include <gtest/gtest.h>

#include "support/eventually.h"

namespace onecopy {
namespace {

TEST(WaitWord, IsAtRestUntilArmedAndAfterAWakeThatFoundNobody) {
  WaitWord word{};
  EXPECT_EQ(word.word.load() & 1, 0U);
  word.notify_one();
  EXPECT_EQ(word.word.load(), 0U);
  EXPECT_EQ(word.arm() & 1, 1U);
  word.notify_one();
  EXPECT_EQ(word.word.load() & 1, 0U);
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
  EXPECT_TRUE(sleep_on(word, word.arm(), deadline_after(std::chrono::milliseconds(1))));
}

TEST(SpinBudget, StopsSpinningAfterFailuresAndProbesNowAndThen) {
  SpinBudget budget;
  int looks = 0;
  const auto never = [&] {
    ++looks;
    return false;
  };
  for (int i = 0; i < 40; ++i) EXPECT_FALSE(budget.spin(never));
  looks = 0;
  int probes = 0;
  for (std::uint32_t i = 0; i < 4 * SpinBudget::kProbeEvery; ++i) {
    budget.spin(never);
    probes += looks > 0;
    looks = 0;
  }
  EXPECT_GE(probes, 3);
  EXPECT_LE(probes, 5);
}

TEST(SpinBudget, SpinsAgainAfterASuccess) {
  SpinBudget budget;
  const auto never = [] { return false; };
  const auto at_once = [] { return true; };
  EXPECT_FALSE(budget.spin(never));
  EXPECT_FALSE(budget.spin(at_once)) << "it has given up";
  EXPECT_TRUE(testing::eventually([&] { return budget.spin(at_once); })) << "a probe";
  EXPECT_TRUE(testing::eventually([&] {  // at once, if nothing else takes the processor meanwhile
    int looks = 0;
    return budget.spin(at_once) && budget.spin([&] { return ++looks == 200; });
  }));
}

TEST(Deadline, NeverOverflows) {
  EXPECT_EQ(deadline_after(std::chrono::nanoseconds::max()), kForever);
  EXPECT_EQ(time_left(kForever, kSleepSlice), kSleepSlice);
  EXPECT_EQ(time_left(kNow, kSleepSlice).count(), 0);
  EXPECT_EQ(time_left(deadline_after(std::chrono::hours(1)), kSleepSlice), kSleepSlice);
}

}  // namespace
}  // namespace onecopy
