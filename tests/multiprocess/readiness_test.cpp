// SPDX-License-Identifier: Apache-2.0
// A queue's descriptor for select, poll and epoll, and the effects of other processes on the queue.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <thread>

#include "onecopy/channel/queue.h"
#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "support/child.h"
#include "support/die_at.h"
#include "support/note.h"
#include "support/processes_test.h"

namespace onecopy {
namespace {

using namespace std::chrono_literals;
using testing::Child;
using testing::eventually;
using testing::JoinedChild;
using testing::kPatience;
using testing::Note;
using testing::ProcessesTest;
using testing::Shared;

bool is_readable(int fd, std::chrono::milliseconds wait = 0ms) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, static_cast<int>(wait.count())) == 1;
}

Message tagged(std::uint32_t tag) { return {tag, {}, {}}; }

class ReadyFdBetweenProcesses : public ProcessesTest {};

TEST_F(ReadyFdBetweenProcesses, PutsOfOthersMakeItReadable) {
  Queue queue = Queue::create();
  const int fd = queue.ready_fd();
  JoinedChild putter([&, handle = queue.handle()] {
    Queue mine = Queue::connect(handle);
    for (int round = 1; round <= 20; ++round) {
      note->reach(round);
      mine.put(tagged(static_cast<std::uint32_t>(round)));
    }
  });
  for (int round = 1; round <= 20; ++round) {
    EXPECT_FALSE(is_readable(fd));
    note->step = round;
    ASSERT_TRUE(is_readable(fd, kPatience));
    EXPECT_EQ(queue.get().tag, static_cast<std::uint32_t>(round));
  }
}

TEST_F(ReadyFdBetweenProcesses, MissesNothingThatOthersPut) {
  constexpr std::uint32_t kEach = 3000;
  Queue queue = Queue::create();
  const int fd = queue.ready_fd();
  const auto put = [handle = queue.handle()] {
    Queue mine = Queue::connect(handle);
    for (std::uint32_t i = 0; i < kEach; ++i) mine.put(tagged(i));
  };
  Child first(put);
  JoinedChild second(put);
  for (std::uint32_t taken = 0; taken < 2 * kEach;) {
    ASSERT_TRUE(is_readable(fd, kPatience)) << "after " << taken;
    while (queue.try_get()) ++taken;
  }
  EXPECT_EQ(first.join(), 0);
}

TEST_F(ReadyFdBetweenProcesses, AConsumerElsewhereMakesItUnreadable) {
  Queue queue = Queue::create();
  const int fd = queue.ready_fd();
  for (int i = 0; i < 10; ++i) queue.put(tagged(1));
  EXPECT_TRUE(is_readable(fd));
  Child getter([handle = queue.handle()] {
    Queue mine = Queue::connect(handle);
    for (int i = 0; i < 10; ++i) mine.get();
  });
  EXPECT_EQ(getter.join(), 0);
  EXPECT_TRUE(eventually([&] { return !is_readable(fd); }));
  queue.put(tagged(2));
  EXPECT_TRUE(is_readable(fd));
}

TEST_F(ReadyFdBetweenProcesses, CloseElsewhereMakesItReadable) {
  Queue queue = Queue::create();
  const int fd = queue.ready_fd();
  Child closer([handle = queue.handle()] { Queue::connect(handle).close(); });
  EXPECT_TRUE(is_readable(fd, kPatience));
  EXPECT_EQ(closer.join(), 0);
  EXPECT_THROW(queue.try_get(), Error);
}

TEST_F(ReadyFdBetweenProcesses, APutterKilledBeforeItsWakeDelaysItOnly) {
  Queue queue = Queue::create();
  const int fd = queue.ready_fd();
  Child putter([handle = queue.handle()] {
    Queue mine = Queue::connect(handle);
    testing::die_at("ring.put.unlocked");
    mine.put(tagged(1));
  });
  EXPECT_EQ(putter.join(), -SIGKILL) << "the point was not reached";
  EXPECT_TRUE(is_readable(fd, kPatience));
}

TEST_F(ReadyFdBetweenProcesses, WatchersInTwoProcessesDoNotKeepAGetterInAThirdWaiting) {
  constexpr std::uint32_t kRounds = 1500;
  Queue there = Queue::create();
  Queue back = Queue::create();
  there.ready_fd();
  JoinedChild watcher([&, handle = there.handle()] {
    const Queue mine = Queue::connect(handle);
    mine.ready_fd();
    note->step = 1;
    note->reach(2);
  });
  JoinedChild getter([from = there.handle(), to = back.handle()] {
    Queue in = Queue::connect(from);
    Queue out = Queue::connect(to);
    for (std::uint32_t i = 0; i < kRounds; ++i) out.put(in.get());
  });
  note->reach(1);
  for (std::uint32_t i = 0; i < kRounds; ++i) {
    there.put(tagged(i));
    EXPECT_EQ(back.get().tag, i);
  }
  note->step = 2;
}

// Forks.

TEST_F(ReadyFdBetweenProcesses, AForkedChildGetsItsOwnAndTheParentsGoesOn) {
  Queue queue = Queue::create();
  const int fd = queue.ready_fd();
  Child child([&] {
    const int mine = queue.ready_fd();
    EXPECT_FALSE(is_readable(mine));
    note->step = 1;
    EXPECT_TRUE(is_readable(mine, kPatience));
    EXPECT_EQ(queue.get().tag, 7u);
    EXPECT_FALSE(is_readable(mine));
    queue.put(tagged(8));
    note->step = 2;
    note->reach(3);
  });
  note->reach(1);
  queue.put(tagged(7));
  note->reach(2);
  ASSERT_TRUE(is_readable(fd, kPatience));
  EXPECT_EQ(queue.get().tag, 8u);
  note->step = 3;
  EXPECT_EQ(child.join(), 0);
  EXPECT_TRUE(eventually([&] { return !is_readable(fd); }));
}

TEST_F(ReadyFdBetweenProcesses, AChildThatNeverAsksLeavesTheParentsAlone) {
  Queue queue = Queue::create();
  const int fd = queue.ready_fd();
  Child child([&] {
    EXPECT_FALSE(queue.try_get());
    queue.put(tagged(1));
    queue.close();
  });
  EXPECT_EQ(child.join(), 0);
  ASSERT_TRUE(is_readable(fd, kPatience));
  EXPECT_EQ(queue.get().tag, 1u);
}

TEST_F(ReadyFdBetweenProcesses, ForksWhileOthersPutMissNothing) {
  constexpr std::uint32_t kItems = 2000;
  Queue queue = Queue::create();
  const int fd = queue.ready_fd();
  JoinedChild putter([handle = queue.handle()] {
    Queue mine = Queue::connect(handle);
    for (std::uint32_t i = 0; i < kItems; ++i) mine.put(tagged(i));
  });
  for (std::uint32_t taken = 0; taken < kItems;) {
    ASSERT_TRUE(is_readable(fd, kPatience)) << "after " << taken;
    while (queue.try_get()) ++taken;
    JoinedChild forked([] {});
  }
}

TEST_F(ReadyFdBetweenProcesses, AProcessExitsInPeaceWithItsWatcherAsleepOrAwake) {
  for (const bool with_item : {false, true}) {
    JoinedChild child([&] {
      static Queue queue = Queue::create();  // outlives main
      queue.ready_fd();
      if (with_item) queue.put(tagged(1));
      std::exit(::testing::Test::HasFailure() ? 1 : 0);
    });
  }
}

/// Ten wakes a second are nothing; a spinning thread would take all of the time.
TEST_F(ReadyFdBetweenProcesses, UsesNextToNoProcessorTimeWhileNothingHappens) {
  const auto used = [] {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return std::chrono::seconds(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           std::chrono::microseconds(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  };
  Queue empty_queue = Queue::create();
  Queue full_queue = Queue::create();
  full_queue.put(tagged(1));
  empty_queue.ready_fd();
  full_queue.ready_fd();
  const auto before = used();
  std::this_thread::sleep_for(1s);
  EXPECT_LT(used() - before, 250ms);
}

}  // namespace
}  // namespace onecopy
