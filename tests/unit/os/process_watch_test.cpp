// SPDX-License-Identifier: Apache-2.0
#include "os/process_watch.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <utility>

#include "os/process.h"
#include "support/child.h"
#include "support/eventually.h"
#include "support/watchdog.h"

namespace onecopy {
namespace {

using testing::Child;
using testing::eventually;

Child paused() {
  return Child([] { ::pause(); });
}

ProcessWatch watch_of(const Child& child) { return {child.pid(), open_pidfd(child.pid())}; }

std::ptrdiff_t open_descriptors() {
  const std::filesystem::directory_iterator open("/proc/self/fd");
  return std::distance(begin(open), end(open));
}

TEST(ProcessWatch, ObjectsForOneProcessOwnOneDescriptorUntilTheLastIsGone) {
  Child first = paused(), second = paused();
  const std::ptrdiff_t before = open_descriptors();
  {
    const ProcessWatch one = watch_of(first), same = watch_of(first);
    ProcessWatch third = watch_of(first);
    EXPECT_EQ(open_descriptors(), before + 1);
    third = watch_of(second);
    EXPECT_EQ(open_descriptors(), before + 2);
    second.kill();
    EXPECT_TRUE(third.has_ended());
    EXPECT_FALSE(one.has_ended() || same.has_ended());
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(ProcessWatch, OfAProcessWithoutAKnownNumberOwnsItsDescriptor) {
  Child child = paused();
  const ProcessWatch known = watch_of(child);
  const std::ptrdiff_t before = open_descriptors();
  ProcessWatch unknown(0, open_pidfd(child.pid()));
  EXPECT_EQ(open_descriptors(), before + 1);
  EXPECT_FALSE(unknown.has_ended());
  EXPECT_FALSE(ProcessWatch(child.pid(), Fd()));
}

TEST(ProcessWatch, MayOwnAnotherOneByItsTask) {
  const testing::Watchdog watchdog;
  Child child = paused();
  EventLoop loop;
  ProcessWatch outer = watch_of(child);
  outer.start(loop, [inner = std::make_shared<ProcessWatch>(watch_of(child))] {});
  outer.stop();
  EXPECT_FALSE(outer.has_ended());
}

TEST(ProcessWatch, OfAProcessThatHasEndedIsNotSharedWithAnotherOfItsNumber) {
  Child ended = paused(), other = paused();
  ProcessWatch first = watch_of(ended);
  ended.kill();
  const ProcessWatch reused(ended.pid(), open_pidfd(other.pid()));
  EXPECT_TRUE(first.has_ended());
  EXPECT_FALSE(reused.has_ended());
}

TEST(ProcessWatch, RunsEachTaskOnceAlsoOneThatStartsAfterTheEnd) {
  Child child = paused();
  std::atomic<int> tasks{0}, late{0};
  EventLoop loop;
  ProcessWatch first = watch_of(child), second = watch_of(child), third = watch_of(child);
  first.start(loop, [&] {
    ++tasks;
    throw std::runtime_error("a task that fails does not keep others from running");
  });
  second.start(loop, [&] { tasks += 100; });
  second.start(loop, [&] { tasks += 10; });
  child.kill();
  EXPECT_TRUE(eventually([&] { return tasks == 11; }));
  third.start(loop, [&] { ++late; });
  EXPECT_TRUE(eventually([&] { return late == 1; }));
  EXPECT_EQ(tasks, 11);
}

TEST(ProcessWatch, DoesNotRunATaskThatWasStoppedOrWhoseObjectIsGone) {
  Child child = paused();
  std::atomic<int> stopped{0}, run{0};
  EventLoop loop;
  ProcessWatch first = watch_of(child), second = watch_of(child), last = watch_of(child);
  first.start(loop, [&] { ++stopped; });
  second.start(loop, [&] { ++stopped; });
  last.start(loop, [&] { ++run; });
  first.stop();
  second = {};
  ProcessWatch moved = std::move(last);
  child.kill();
  EXPECT_TRUE(eventually([&] { return run == 1; }));
  EXPECT_EQ(stopped, 0);
}

/// A forked child of a process that waits for a peer may wait for it, too, on a loop of its own.
TEST(ProcessWatch, WorksOnALoopOfAForkedChild) {
  Child peer = paused();
  EventLoop loop;
  ProcessWatch watch = watch_of(peer), again = watch_of(peer);
  watch.start(loop, [] {});
  loop.stop();
  Child forked([&] {
    loop.abandon();
    std::atomic<bool> has_run{false};
    EventLoop own;
    again.start(own, [&] { has_run = true; });
    EXPECT_TRUE(eventually([&] { return has_run.load(); }));
    again.stop();
  });
  loop.start_again();
  peer.kill();
  EXPECT_EQ(forked.join(), 0);
}

}  // namespace
}  // namespace onecopy
