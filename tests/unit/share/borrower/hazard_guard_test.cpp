// SPDX-License-Identifier: Apache-2.0
#include "share/borrower/leases.h"

#include <gtest/gtest.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "share/session.h"
#include "support/child.h"
#include "support/limits.h"

namespace onecopy {
namespace {

using testing::JoinedChild;
using Readers = HazardGuard::Readers;

const int kPlace = 0;
const int kOther = 0;

/// A thread that is at kPlace until it is told to leave.
class Visitor {
 public:
  Visitor() { is_there_.wait(false); }
  ~Visitor() { leave(); }
  void leave() {
    may_leave_ = true;
    may_leave_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::atomic<bool> is_there_{false}, may_leave_{false};
  std::thread thread_{[this] {
    const HazardGuard here(&kPlace);
    is_there_ = true;
    is_there_.notify_all();
    may_leave_.wait(false);
  }};
};

bool kernel_tells() { return HazardGuard::readers_of(&kPlace) != Readers::unknown; }

class HazardGuardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!kernel_tells()) GTEST_SKIP() << "wants a kernel with membarrier(2), private expedited";
  }
};

TEST_F(HazardGuardTest, OfAnotherThreadIsSeenUntilItEnds) {
  EXPECT_EQ(HazardGuard::readers_of(&kPlace), Readers::none);
  Visitor visitor;
  EXPECT_EQ(HazardGuard::readers_of(&kPlace), Readers::some);
  EXPECT_EQ(HazardGuard::readers_of(&kOther), Readers::none);
  visitor.leave();
  EXPECT_EQ(HazardGuard::readers_of(&kPlace), Readers::none);
}

TEST_F(HazardGuardTest, InsideOfAnotherReplacesItForGood) {
  const HazardGuard outer(&kPlace);
  {
    const HazardGuard inner(&kOther);
    EXPECT_EQ(HazardGuard::readers_of(&kPlace), Readers::none);
    EXPECT_EQ(HazardGuard::readers_of(&kOther), Readers::some);
  }
  EXPECT_EQ(HazardGuard::readers_of(&kPlace), Readers::none);
  EXPECT_EQ(HazardGuard::readers_of(&kOther), Readers::none);
}

/// Registering later makes the watch thread wait for the kernel, tens of seconds on a machine with far too much to do.
TEST(HazardGuard, IsRegisteredBeforeAProcessStartsItsFirstThread) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizers have threads of their own";
  const auto ask_kernel = [](int command) { return ::syscall(SYS_membarrier, command, 0, 0); };
  if ((ask_kernel(MEMBARRIER_CMD_QUERY) & MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0)
    GTEST_SKIP() << "wants a kernel with membarrier(2), private expedited";
  JoinedChild process([&] {
    Session::current();
    EXPECT_EQ(ask_kernel(MEMBARRIER_CMD_PRIVATE_EXPEDITED), 0);
  });
}

TEST_F(HazardGuardTest, OfAThreadThatAForkLeftBehindIsForgottenInTheChild) {
  Visitor visitor;
  EXPECT_EQ(HazardGuard::readers_of(&kPlace), Readers::some);
  JoinedChild child([] {
    HazardGuard::forget_others();  // the fork handlers of a Runtime of this process have called it already
    EXPECT_EQ(HazardGuard::readers_of(&kPlace), Readers::none);
  });
}

TEST_F(HazardGuardTest, OfManyThreadsOneAfterAnother) {
  for (int i = 0; i < 100; ++i) {
    Visitor visitor;
    EXPECT_EQ(HazardGuard::readers_of(&kPlace), Readers::some);
  }
  EXPECT_EQ(HazardGuard::readers_of(&kPlace), Readers::none);
}

}  // namespace
}  // namespace onecopy
