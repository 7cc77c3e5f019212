// SPDX-License-Identifier: Apache-2.0
#include "os/robust_mutex.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "expect_error.h"
#include "support/child.h"
#include "support/watchdog.h"

namespace onecopy {
namespace {

using namespace std::chrono_literals;
using testing::Child;
using testing::eventually;
using testing::JoinedChild;
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
  JoinedChild waiter([&] {
    shared->step = 2;
    shared->mutex.lock();
    shared->mutex.unlock();
  });
  ASSERT_TRUE(eventually([&] { return shared->step == 2; }));
  holder.kill();
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
  JoinedChild other([&] {
    EXPECT_FALSE(shared->mutex.try_lock_for(5ms));
    EXPECT_FALSE(shared->mutex.try_lock_for(0ms));
    shared->step = 1;
    EXPECT_TRUE(shared->mutex.try_lock_for(20s));
    shared->mutex.unlock();
  });
  ASSERT_TRUE(eventually([&] { return shared->step == 1; }));
  shared->mutex.unlock();
}

TEST(RobustMutex, AThreadThatEndsLeavesItToTheNext) {
  const Shared<Guarded> shared;
  std::thread([&] { shared->mutex.lock(); }).join();
  EXPECT_TRUE(shared->mutex.try_lock());
  shared->mutex.unlock();
}

TEST(RobustMutex, AHolderThatBecomesAnotherProgramLeavesItToTheNext) {
  const testing::Watchdog watchdog;
  const Shared<Guarded> shared;
  Child holder([&] {
    shared->mutex.lock();
    shared->step = 1;
    ::execlp("sleep", "sleep", "1000", nullptr);
  });
  ASSERT_TRUE(eventually([&] { return shared->step == 1; }));
  shared->mutex.lock();
  shared->mutex.unlock();
  EXPECT_FALSE(holder.has_ended());
}

TEST(RobustMutex, AChildThatNoForkHandlerSawLeavesItToTheNext) {
  const testing::Watchdog watchdog;
  const Shared<Guarded> shared;
  shared->mutex.lock();  // from here on the parent's thread is known
  shared->mutex.unlock();
  const auto pid = static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
  if (pid == 0) {
    shared->mutex.lock();
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(shared->mutex.try_lock_for(20s));
  shared->mutex.unlock();
}

TEST(RobustMutex, AStoppedHolderKeepsIt) {
  const testing::Watchdog watchdog;
  const Shared<Guarded> shared;
  Child holder([&] {
    shared->mutex.lock();
    shared->step = 1;
    ::pause();
  });
  ASSERT_TRUE(eventually([&] { return shared->step == 1; }));
  holder.signal(SIGSTOP);
  EXPECT_FALSE(shared->mutex.try_lock_for(250ms))
      << "a waiter must have looked at the holder twice by then";
}

TEST(RobustMutex, ADeathIsFoundWhereTheKernelWasToldOfAnotherLockMeanwhile) {
  const testing::Watchdog watchdog;
  const Shared<Guarded> shared;
  Child holder([&] {
    shared->mutex.lock();
    pthread_mutexattr_t robust;
    ::pthread_mutexattr_init(&robust);
    ::pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_t other;
    ::pthread_mutex_init(&other, &robust);
    ::pthread_mutex_lock(&other);
    ::pthread_mutex_unlock(&other);
  });
  EXPECT_EQ(holder.join(), 0);
  EXPECT_TRUE(shared->mutex.try_lock_for(20s));
  shared->mutex.unlock();
}

TEST(RobustMutex, BothLocksOfADeadThreadAreFree) {
  const testing::Watchdog watchdog;
  const Shared<Guarded> outer, inner;
  Child holder([&] {
    outer->mutex.lock();
    inner->mutex.lock();
  });
  EXPECT_EQ(holder.join(), 0);
  EXPECT_TRUE(outer->mutex.try_lock());
  EXPECT_TRUE(inner->mutex.try_lock_for(20s));
  inner->mutex.unlock();
  outer->mutex.unlock();
}

/// Byte 24 and on is where the C library's mutexes have the pointers that they follow.
TEST(RobustMutex, UnlockingFollowsNothingThatAnotherProcessWrote) {
  const Shared<Guarded> shared;
  JoinedChild victim([&] {
    shared->mutex.lock();
    std::memset(reinterpret_cast<std::byte*>(&shared->mutex) + 24, 0x41, sizeof(RobustMutex) - 24);
    shared->mutex.unlock();
    shared->mutex.lock();
    shared->mutex.unlock();
  });
}

TEST(RobustMutex, AHolderThatDoesNotExistIsNotWaitedFor) {
  const testing::Watchdog watchdog;
  const Shared<Guarded> shared;
  const std::uint32_t nobody = 0x3fff'fff0;  // above any pid_max
  std::memcpy(static_cast<void*>(&shared->mutex), &nobody, sizeof nobody);
  EXPECT_FALSE(shared->mutex.try_lock());
  EXPECT_TRUE(shared->mutex.try_lock_for(20s));
  shared->mutex.unlock();
  EXPECT_TRUE(shared->mutex.try_lock());
  shared->mutex.unlock();
}

TEST(RobustMutex, LockingTwiceIsAnErrorInsteadOfAHang) {
  const Shared<Guarded> shared;
  const std::lock_guard once(shared->mutex);
  expect_error(ErrorCode::protocol, [&] { shared->mutex.lock(); });
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
