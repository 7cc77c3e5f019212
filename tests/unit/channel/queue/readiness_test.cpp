// SPDX-License-Identifier: Apache-2.0
// A queue's descriptor for select, poll and epoll, within one process.
#include <gtest/gtest.h>
#include <poll.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "onecopy/channel/queue.h"
#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "support/eventually.h"
#include "support/footprint.h"
#include "support/watchdog.h"

namespace onecopy {
namespace {

using namespace std::chrono_literals;
using testing::eventually;
using testing::expect_soon;
using testing::Footprint;
using testing::Watchdog;

bool is_readable(const Queue& queue, std::chrono::milliseconds wait = 0ms) {
  pollfd entry{queue.ready_fd(), POLLIN, 0};
  return ::poll(&entry, 1, static_cast<int>(wait.count())) == 1;
}

Message tagged(std::uint32_t tag) { return {tag, {}, {}}; }

std::size_t threads_named(const std::string& name) {
  std::size_t count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string found;
    std::getline(std::ifstream(task.path() / "comm") >> std::ws, found);
    count += found == name;
  }
  return count;
}

TEST(ReadyFd, SaysAtOnceWhatThisProcessDoes) {
  Queue queue = Queue::create();
  EXPECT_FALSE(is_readable(queue));
  queue.put(tagged(1));
  EXPECT_TRUE(is_readable(queue));
  queue.put(tagged(2));
  queue.get();
  EXPECT_TRUE(is_readable(queue));
  queue.get();
  EXPECT_FALSE(is_readable(queue));
  EXPECT_FALSE(queue.try_get());
  queue.put(tagged(3));
  EXPECT_TRUE(is_readable(queue));
}

TEST(ReadyFd, IsReadableAtOnceForWhatIsThereAlready) {
  Queue queue = Queue::create();
  queue.put(tagged(1));
  EXPECT_TRUE(is_readable(queue));
}

TEST(ReadyFd, IsOneForAllObjectsOfTheQueue) {
  Queue queue = Queue::create();
  const Queue same = Queue::connect(queue.handle());
  EXPECT_EQ(queue.ready_fd(), same.ready_fd());
  EXPECT_EQ(queue.ready_fd(), queue.ready_fd());
  EXPECT_TRUE(eventually([] { return threads_named("onecopy-ready") == 1; }));
}

TEST(ReadyFd, StaysReadableAfterClose) {
  Watchdog watchdog;
  Queue queue = Queue::create();
  EXPECT_FALSE(is_readable(queue));
  queue.close();
  EXPECT_TRUE(is_readable(queue));
  EXPECT_THROW(queue.try_get(), Error);
  EXPECT_TRUE(is_readable(queue));
  EXPECT_TRUE(eventually([] { return threads_named("onecopy-ready") == 0; })) << "nothing is left to watch";
}

TEST(ReadyFd, CostsAThreadOnlyOnceItIsAskedFor) {
  Queue queue = Queue::create();
  queue.put(tagged(1));
  queue.get();
  EXPECT_EQ(threads_named("onecopy-ready"), 0u);
  EXPECT_FALSE(is_readable(queue));
  EXPECT_TRUE(eventually([] { return threads_named("onecopy-ready") == 1; }));
}

TEST(ReadyFd, LeavesNothingBehind) {
  Watchdog watchdog;
  { Queue warm = Queue::create(); }
  const Footprint before = Footprint::unchanging();
  for (int i = 0; i < 20; ++i) {
    Queue queue = Queue::create();
    queue.put(tagged(1));
    EXPECT_TRUE(is_readable(queue));
    if (i % 2 == 0) queue.get();
  }
  EXPECT_TRUE(eventually([] { return threads_named("onecopy-ready") == 0; }));
  expect_soon(before);
}

/// Waits for the descriptor only: an item that it misses is never taken.
TEST(ReadyFd, MissesNothingThatOtherThreadsPut) {
  Watchdog watchdog;
  constexpr std::uint32_t kEach = 5000;
  Queue queue = Queue::create();
  const int fd = queue.ready_fd();
  std::vector<std::thread> putters;
  for (int p = 0; p < 2; ++p)
    putters.emplace_back([&] {
      for (std::uint32_t i = 0; i < kEach; ++i) {
        queue.put(tagged(i));
        if (i % 50 == 0) std::this_thread::sleep_for(100us);
      }
    });
  std::uint32_t taken = 0;
  while (taken < 2 * kEach) {
    pollfd entry{fd, POLLIN, 0};
    ASSERT_EQ(::poll(&entry, 1, 20'000), 1) << "after " << taken;
    while (queue.try_get()) ++taken;
  }
  for (std::thread& putter : putters) putter.join();
  EXPECT_FALSE(is_readable(queue));
}

/// A wake goes to one sleeper: the watcher must pass on a wake that was meant for a getter. Each lost wake costs the
/// rest of a slice of 100 ms, so that the watchdog would see it.
TEST(ReadyFd, TakesNoWakeAwayFromAGetter) {
  Watchdog watchdog;
  constexpr std::uint32_t kRounds = 2000;
  Queue there = Queue::create();
  Queue back = Queue::create();
  there.ready_fd();
  std::thread getter([&] {
    for (std::uint32_t i = 0; i < kRounds; ++i) back.put(there.get());
  });
  for (std::uint32_t i = 0; i < kRounds; ++i) {
    there.put(tagged(i));
    EXPECT_EQ(back.get().tag, i);
  }
  getter.join();
}

}  // namespace
}  // namespace onecopy
