// SPDX-License-Identifier: Apache-2.0
#include "os/deadline.h"

#include <gtest/gtest.h>

#include <limits>

#include "onecopy/core/error.h"

namespace onecopy {
namespace {

using namespace std::chrono_literals;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Deadline, OfZeroAndLessTriesOnce) {
  EXPECT_EQ(Deadline::after(0ns), kNow);
  EXPECT_EQ(Deadline::after(-1h), kNow);
  EXPECT_EQ(Deadline::after_seconds(0), kNow);
  EXPECT_EQ(Deadline::after_seconds(-0.5), kNow);
  EXPECT_EQ(Deadline::after_seconds(-kInfinity), kNow);
}

TEST(Deadline, OfInfinityAndOfMoreThanTheClockHoldsIsNever) {
  EXPECT_EQ(Deadline::after_seconds(kInfinity), kForever);
  EXPECT_EQ(Deadline::after_seconds(1e300), kForever);
  EXPECT_EQ(Deadline::after(std::chrono::nanoseconds::max()), kForever);
  EXPECT_EQ(Deadline::after(std::chrono::hours::max()), kForever);
}

TEST(Deadline, OfNotANumberIsRefused) {
  EXPECT_THROW(Deadline::after_seconds(std::numeric_limits<double>::quiet_NaN()), Error);
}

TEST(Deadline, OfSecondsKeepsTheirFractions) {
  const auto before = std::chrono::steady_clock::now();
  const Deadline deadline = Deadline::after_seconds(2.25);
  EXPECT_GE(deadline.at(), before + 2250ms);
  EXPECT_LE(deadline.at(), std::chrono::steady_clock::now() + 2250ms);
}

}  // namespace
}  // namespace onecopy
