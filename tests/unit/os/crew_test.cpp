// SPDX-License-Identifier: Apache-2.0
#include "os/crew.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <csignal>

#include "os/blocked_signals.h"
#include "support/child.h"
#include "support/limits.h"

namespace onecopy {
namespace {

bool is_blocked(int signal) {
  sigset_t mask;
  ::pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  return ::sigismember(&mask, signal) == 1;
}

TEST(BlockedSignals, AreAsBeforeAfterwards) {
  ASSERT_FALSE(is_blocked(SIGUSR1));
  {
    const BlockedSignals blocked;
    EXPECT_TRUE(is_blocked(SIGUSR1));
    EXPECT_TRUE(is_blocked(SIGINT));
  }
  EXPECT_FALSE(is_blocked(SIGUSR1));
}

TEST(Crew, WorksOnceAThreadWithoutSignalsAndIsOverAtTheEnd) {
  std::atomic<int> calls{0};
  std::atomic<int> with_signals{0};
  {
    const Crew crew(3, [&] {
      ++calls;
      with_signals += !is_blocked(SIGINT);
    });
  }
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(with_signals, 0);
  EXPECT_FALSE(is_blocked(SIGINT));
}

TEST(Crew, MayBeNobody) {
  const Crew crew(0, [] { FAIL(); });
}

TEST(Crew, IsSmallerWhereTheSystemHasNoThreads) {
  if (testing::kSanitized) GTEST_SKIP() << "a sanitizer needs terabytes of address space";
  testing::Child child([] {
    const testing::Limit limit(RLIMIT_AS, testing::address_space_for(1 << 20));  // less than a stack
    std::atomic<int> calls{0};
    std::atomic<bool> all_made{false};
    {
      const Crew crew(100, [&] {
        ++calls;
        all_made.wait(false);
      });
      all_made = true;
      all_made.notify_all();
    }
    EXPECT_LT(calls, 100);  // some stacks are left of threads that have ended
  });
  EXPECT_EQ(child.join(), 0);
}

}  // namespace
}  // namespace onecopy
