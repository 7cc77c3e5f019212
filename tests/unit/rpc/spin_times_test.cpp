// SPDX-License-Identifier: Apache-2.0
#include "rpc/spin_times.h"

#include <gtest/gtest.h>

namespace onecopy::rpc {
namespace {

using namespace std::chrono_literals;

constexpr SpinTimes kTimes{100us, 400us};

TEST(SpinTimes, OfACallAreTwiceWhatCallsOfItsFunctionTakeUpToTheMost) {
  EXPECT_EQ(kTimes.for_call(0ns), 100us);
  EXPECT_EQ(kTimes.for_call(30us), 100us);
  EXPECT_EQ(kTimes.for_call(120us), 240us);
  EXPECT_EQ(kTimes.for_call(300us), 400us);
}

TEST(SpinTimes, OfACallThatTakesLongAreNone) { EXPECT_EQ(kTimes.for_call(401us), 0us); }

TEST(SpinTimes, OfAWorkerAreLongWhileMessagesComeSoonAfterItHasFallenAsleep) {
  EXPECT_EQ(kTimes.after_sleep(50us), 400us);
  EXPECT_EQ(kTimes.after_sleep(400us), 100us);
  EXPECT_EQ(kTimes.after_sleep(100ms), 100us);
}

TEST(SpinTimes, ThatAProgramGivesAreFixed) {
  constexpr SpinTimes kFixed{50us, 50us}, kNone{};
  EXPECT_EQ(kFixed.for_call(40us), 50us);
  EXPECT_EQ(kFixed.after_sleep(10us), 50us);
  EXPECT_FALSE(kNone.is_any());
  EXPECT_EQ(kNone.for_call(0ns), 0us);
  EXPECT_EQ(kNone.after_sleep(10us), 0us);
}

TEST(SpinTimes, EndInAGroupWithFourTimesMoreMembersThanProcessors) {
  EXPECT_FALSE(is_crowd(2, 1));
  EXPECT_FALSE(is_crowd(8, 2));
  EXPECT_TRUE(is_crowd(9, 2));
  EXPECT_FALSE(is_crowd(32, 64));
  EXPECT_TRUE(is_crowd(5, 0));
  EXPECT_FALSE(kTimes.is_chosen());
  EXPECT_TRUE((SpinTimes{0us, 0us}.is_chosen()));
}

}  // namespace
}  // namespace onecopy::rpc
