// SPDX-License-Identifier: Apache-2.0
#include "onecopy/os/robust_mutex.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <vector>

#include "expect_error.h"
#include "support/child.h"
#include "support/watchdog.h"

namespace onecopy {
namespace {

using namespace std::chrono_literals;
using testing::Child;
using testing::eventually;
using testing::Shared;

struct Guarded {
  Guarded() { mutex.init(); }
  RobustMutex mutex;
  long count = 0;
  std::atomic<int> step{0};
};

TEST(RobustMutex, LetsOneProcessInAtATime) {
  const testing::Watchdog watchdog;
  const Shared<Guarded> shared;
  std::vector<Child> children;
  for (int i = 0; i < 4; ++i)
    children.emplace_back([&] {
      for (int n = 0; n < 20'000; ++n) {
        const std::lock_guard lock(shared->mutex);
        shared->count = shared->count + 1;
      }
    });
  for (Child& child : children) EXPECT_EQ(child.join(), 0);
  EXPECT_EQ(shared->count, 80'000);
}

TEST(RobustMutex, SurvivesAKilledHolder) {
  const testing::Watchdog watchdog;
  const Shared<Guarded> shared;
  for (int round = 1; round <= 3; ++round) {
    Child holder([&] {
      shared->mutex.lock();
      shared->step = round;
      ::pause();
    });
    ASSERT_TRUE(eventually([&] { return shared->step == round; }));
    EXPECT_FALSE(shared->mutex.try_lock());
    holder.kill();
    shared->mutex.lock();
    shared->mutex.unlock();
    EXPECT_TRUE(shared->mutex.try_lock());
    shared->mutex.unlock();
  }
}

TEST(RobustMutex, WakesAWaiterWhenTheHolderIsKilled) {
  const testing::Watchdog watchdog;
  const Shared<Guarded> shared;
  Child holder([&] {
    shared->mutex.lock();
    shared->step = 1;
    ::pause();
  });
  ASSERT_TRUE(eventually([&] { return shared->step == 1; }));
  Child waiter([&] {
    shared->step = 2;
    shared->mutex.lock();
    shared->mutex.unlock();
  });
  ASSERT_TRUE(eventually([&] { return shared->step == 2; }));
  holder.kill();
  EXPECT_EQ(waiter.join(), 0);
}

TEST(RobustMutex, TryLockAlsoInheritsFromTheDead) {
  const Shared<Guarded> shared;
  Child holder([&] { shared->mutex.lock(); });
  EXPECT_EQ(holder.join(), 0);
  EXPECT_TRUE(shared->mutex.try_lock());
  shared->mutex.unlock();
}

TEST(RobustMutex, TryLockForGivesUpWhenItsTimeIsOver) {
  const testing::Watchdog watchdog;
  const Shared<Guarded> shared;
  shared->mutex.lock();
  Child other([&] {
    EXPECT_FALSE(shared->mutex.try_lock_for(5ms));
    EXPECT_FALSE(shared->mutex.try_lock_for(0ms));
    shared->step = 1;
    EXPECT_TRUE(shared->mutex.try_lock_for(20s));
    shared->mutex.unlock();
  });
  ASSERT_TRUE(eventually([&] { return shared->step == 1; }));
  shared->mutex.unlock();
  EXPECT_EQ(other.join(), 0);
}

TEST(RobustMutex, ADamagedOneIsAnErrorInsteadOfAHang) {
  Shared<Guarded> shared;
  for (const int value : {0x00, 0xFF, 0x5A}) {
    std::memset(static_cast<void*>(&shared->mutex), value, sizeof(RobustMutex));
    const std::string why = expect_error(ErrorCode::protocol, [&] { shared->mutex.lock(); });
    EXPECT_PRED2(contains, why, "damaged");
    expect_error(ErrorCode::protocol, [&] { shared->mutex.try_lock(); });
    expect_error(ErrorCode::protocol, [&] { shared->mutex.try_lock_for(1ms); });
  }
}

}  // namespace
}  // namespace onecopy
