// SPDX-License-Identifier: Apache-2.0
// The tools that other tests believe.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <stdexcept>

#include "support/child.h"
#include "support/watchdog.h"

namespace onecopy::testing {
namespace {

using namespace std::chrono_literals;

TEST(Child, ExitStatusCountsTheFailuresInside) {
  Child good([] { EXPECT_TRUE(true); });
  EXPECT_EQ(good.join(), 0);
  Child bad([] {
    ::close(STDOUT_FILENO);  // this failure is expected: print it nowhere
    EXPECT_TRUE(false);
    ADD_FAILURE();
  });
  EXPECT_EQ(bad.join(), 2);
}

TEST(Child, TellsExceptionsExitsAndSignalsApart) {
  Child throws([] {
    ::close(STDERR_FILENO);
    throw std::runtime_error("expected");
  });
  EXPECT_EQ(throws.join(), Child::kThrew);
  Child exits([] { ::_exit(33); });
  EXPECT_EQ(exits.join(), 33);
  Child sleeps([] { ::pause(); });
  sleeps.kill();
  EXPECT_EQ(sleeps.join(), -SIGKILL);
}

TEST(Child, ThatDoesNotEndFailsTheTestAndIsKilled) {
  Child child([] { ::pause(); });
  int status = 0;
  EXPECT_NONFATAL_FAILURE(status = child.join(5ms), "did not end within 5 ms");
  EXPECT_EQ(status, -SIGKILL);
}

TEST(Child, DoesNotOutliveItsObject) {
  int pid = 0;
  {
    const Child child([] { ::pause(); });
    pid = child.pid();
  }
  EXPECT_EQ(::kill(pid, 0), -1);
}

TEST(JoinedChild, ThatFailsFailsTheTestAtItsEnd) {
  EXPECT_NONFATAL_FAILURE({ const JoinedChild child([] { ::_exit(33); }); }, "33");
  const JoinedChild good([] {});
}

TEST(Shared, IsSeenByChildren) {
  const Shared<std::atomic<int>> number;
  Child child([&] { number->store(5); });
  EXPECT_EQ(child.join(), 0);
  EXPECT_EQ(number->load(), 5);
}

TEST(Eventually, IsFalseOnlyWhenTheConditionStaysFalse) {
  int calls = 0;
  EXPECT_TRUE(eventually([&] { return ++calls == 3; }));
  EXPECT_FALSE(eventually([] { return false; }, 2ms));
}

TEST(Eventually, WaitsLongerOnAMachineThatTheEnvironmentCallsSlow) {
  const JoinedChild child([] {
    ::setenv("ONECOPY_TEST_SLOWNESS", "100000", 1);
    int calls = 0;
    EXPECT_TRUE(eventually([&] { return ++calls == 20; }, 1ms)) << "its pauses alone take 60 ms";
  });
}

TEST(WatchdogDeathTest, TurnsAHangIntoStacksOfParentAndChild) {
  EXPECT_DEATH(
      {
        const Watchdog watchdog(1s);
        const Child child([] { ::pause(); });
        ::pause();
      },
      "the test hangs: 1 seconds are over(.|\n)*--- process(.|\n)*--- process");
}

}  // namespace
}  // namespace onecopy::testing
