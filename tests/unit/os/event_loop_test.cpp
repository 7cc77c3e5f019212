// SPDX-License-Identifier: Apache-2.0
#include "os/event_loop.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "failing_allocations.h"
#include "onecopy/core/error.h"
#include "os/log.h"
#include "os/poller.h"
#include "os/process.h"
#include "os/process_origin.h"
#include "support/child.h"
#include "support/eventually.h"
#include "support/limits.h"
#include "support/metronome.h"

namespace onecopy {
namespace {

using testing::Child;
using testing::eventually;
using testing::Metronome;
using namespace std::chrono_literals;

// In each test the EventLoop and its timers come last: its thread ends before the objects it uses.

TEST(EventLoop, CallsAHandlerOnItsOwnThreadWhileThereIsSomethingToRead) {
  Event event;
  std::atomic<int> calls{0};
  std::atomic<bool> elsewhere{false};
  EventLoop loop;
  loop.add(event.fd(), [&] {
    elsewhere = loop.runs_here();
    if (++calls == 3) event.clear();
  });
  EXPECT_FALSE(loop.runs_here());
  event.set();
  EXPECT_TRUE(eventually([&] { return calls == 3; }));
  EXPECT_TRUE(elsewhere);
}

TEST(EventLoop, CallsAnEdgeHandlerOnceAChangeAndAgainWhenRearmed) {
  Event edge, other;
  std::atomic<int> calls{0}, others{0};
  EventLoop loop;
  loop.add(
      edge.fd(), [&] { ++calls; }, true);
  loop.add(other.fd(), [&] {
    other.clear();
    ++others;
  });
  edge.set();
  EXPECT_TRUE(eventually([&] { return calls == 1; }));
  for (int i = 1; i <= 3; ++i) {  // rounds in which the edge would be reported if it were level
    other.set();
    EXPECT_TRUE(eventually([&] { return others == i; }));
  }
  EXPECT_EQ(calls, 1);
  loop.rearm(edge.fd());
  EXPECT_TRUE(eventually([&] { return calls == 2; }));
}

TEST(EventLoop, CanWatchWhatItHadNoMemoryFor) {
  bool is_added = false;
  for (int allocations = 0; !is_added; ++allocations) {
    Event event;
    std::atomic<int> calls{0};
    EventLoop loop;
    loop.start();
    const auto count = [&] {
      event.clear();
      ++calls;
    };
    testing::allocations_left = allocations;
    try {
      loop.add(event.fd(), count);
      is_added = true;
    } catch (const std::bad_alloc&) {
    }
    testing::allocations_left = -1;
    if (!is_added) loop.add(event.fd(), count);
    event.set();
    EXPECT_TRUE(eventually([&] { return calls == 1; })) << "after " << allocations;
  }
}

TEST(Timer, LetsHandlersRunBetweenRunsThatComeAtOnce) {
  constexpr int kRuns = 100;  // two seconds of ordinary ones
  Event event;
  std::atomic<int> runs{0}, served{0};
  EventLoop loop;
  loop.add(event.fd(), [&] {
    event.clear();
    ++served;
  });
  Timer timer(loop, [&] {
    EXPECT_EQ(served, runs) << "the handler comes between two runs";
    event.set();
    return ++runs < kRuns ? Timer::Pause(Timer::kAtOnce) : Timer::Pause();
  });
  timer.request();
  EXPECT_TRUE(eventually([&] { return served == kRuns; }));
  EXPECT_EQ(runs, kRuns);
}

TEST(EventLoop, RemovedHandlersAreNotCalledAndDestroyed) {
  Event removed, other;
  std::atomic<int> others{0};
  auto token = std::make_shared<int>(0);
  EventLoop loop;
  loop.add(removed.fd(), [token] { ADD_FAILURE() << "called after its removal"; });
  loop.remove(removed.fd());
  EXPECT_EQ(token.use_count(), 1);
  loop.add(other.fd(), [&] {
    other.clear();
    ++others;
  });
  removed.set();
  other.set();
  EXPECT_TRUE(eventually([&] { return others == 1; }));
  loop.remove(removed.fd());  // again, and a descriptor that was never added
  loop.remove(12345);
}

TEST(EventLoop, AHandlerMayRemoveItselfAndAddOthers) {
  Event first, second;
  std::atomic<int> calls{0};
  EventLoop loop;
  loop.add(first.fd(), [&] {
    loop.remove(first.fd());
    loop.add(second.fd(), [&] {
      second.clear();
      ++calls;
    });
    second.set();
  });
  first.set();
  EXPECT_TRUE(eventually([&] { return calls == 1; }));
}

TEST(EventLoop, WhatAHandlerThrowsStopsNothing) {
  Event bad, good;
  std::atomic<int> calls{0};
  EventLoop loop;
  loop.add(bad.fd(), [&] {
    bad.clear();
    throw std::runtime_error("a handler of a test");
  });
  loop.add(good.fd(), [&] {
    good.clear();
    ++calls;
  });
  bad.set();
  good.set();
  EXPECT_TRUE(eventually([&] { return calls == 1; }));
}

std::mutex said_mutex;
std::map<std::string, int> said;

int times_said(const std::string& text) {
  const std::lock_guard lock(said_mutex);
  return said["a background thread of onecopy: " + text];
}

/// Throws the given errors, in order, each time that `event` is set.
void throw_in_order(Event& event, std::vector<Error> errors) {
  std::atomic<std::size_t> thrown{0};
  {
    EventLoop loop;
    loop.add(event.fd(), [&] {
      if (thrown + 1 == errors.size()) event.clear();
      throw Error(errors.at(thrown++));
    });
    event.set();
    EXPECT_TRUE(eventually([&] { return thrown == errors.size(); }));
  }  // the last is said when its thread has ended
}

TEST(EventLoop, SaysWhatHandlersThrowOnceATextAndALackOfDescriptorsOnce) {
  set_log_sink([](LogLevel, std::string_view text) {
    const std::lock_guard lock(said_mutex);
    ++said[std::string(text)];
  });
  const Error one(ErrorCode::protocol, "one"), other(ErrorCode::protocol, "other");
  const Error lack(ErrorCode::out_of_descriptors, "no room for a"),
      again(ErrorCode::out_of_descriptors, "for b");
  Event event;
  throw_in_order(event, {one, one, lack, again, lack, other, one});
  set_log_sink(nullptr);
  EXPECT_EQ(times_said("one"), 1);
  EXPECT_EQ(times_said("other"), 1);
  EXPECT_EQ(times_said("no room for a"), 1);
  EXPECT_EQ(times_said("for b"), 0);
}

TEST(Timer, RunsAsLongAsItReturnsAPauseAndThenRests) {
  std::atomic<int> runs{0}, others{0};
  EventLoop loop;
  Timer timer(loop, [&] { return Timer::soon_if(++runs < 3); });
  Timer other(loop, [&] { return ++others, Timer::Pause(); });
  timer.request();
  EXPECT_TRUE(eventually([&] { return runs == 3; }));
  timer.request();
  EXPECT_TRUE(eventually([&] { return runs == 4; }));
  EXPECT_EQ(others, 0) << "a timer that was not requested does not run";
  other.request();
  EXPECT_TRUE(eventually([&] { return others == 1; }));
}

TEST(Timer, RunsAgainAfterThePauseThatItReturns) {
  std::atomic<int> runs{0};
  EventLoop loop;
  Timer timer(loop, [&] { return ++runs, Timer::Pause(160ms); });
  timer.request();
  Metronome().reach(60);
  EXPECT_LT(runs, 45);
  EXPECT_GE(runs, 3);
}

TEST(Timer, RunsSoonOnRequestDuringALongPause) {
  std::atomic<int> runs{0};
  EventLoop loop;
  Timer timer(loop, [&] { return ++runs, Timer::Pause(1h); });
  for (int i = 1; i <= 3; ++i) {
    timer.request();
    EXPECT_TRUE(eventually([&] { return runs == i; }));
  }
}

TEST(Timer, RunsNoMoreOftenForManyRequests) {
  std::atomic<int> runs{0};
  std::atomic<bool> is_over{false};
  EventLoop loop;
  Timer timer(loop, [&] { return ++runs, Timer::Pause(); });
  std::thread requester([&] {
    while (!is_over) timer.request();
  });
  Metronome().reach(30);
  is_over = true;
  requester.join();
  EXPECT_GE(runs, 10);
  EXPECT_LE(runs, 300) << "not once a request";
}

TEST(Timer, AFailedRunIsRepeatedSoon) {
  std::atomic<int> runs{0};
  EventLoop loop;
  Timer timer(loop, [&] {
    if (++runs < 3) throw std::runtime_error("a timer of a test");
    return Timer::Pause();
  });
  timer.request();
  EXPECT_TRUE(eventually([&] { return runs == 3; }));
}

TEST(Timer, MayRequestOthersBeforeAndBehindIt) {
  std::atomic<int> runs{0};
  EventLoop loop;
  Timer first(loop, [&] { return ++runs, Timer::Pause(); });
  std::optional<Timer> last;
  Timer asker(loop, [&] {
    first.request();
    last->request();
    return Timer::Pause();
  });
  last.emplace(loop, [&] { return ++runs, Timer::Pause(); });
  asker.request();
  EXPECT_TRUE(eventually([&] { return runs == 2; }));
}

/// A pass goes on behind a gap in the list of timers.
TEST(Timer, MayComeAndGoWhileOthersRun) {
  std::atomic<int> runs{0};
  EventLoop loop;
  std::optional<Timer> short_lived;
  Timer maker(loop, [&] {
    short_lived.reset();
    short_lived.emplace(loop, [] { return Timer::Pause(); });
    return Timer::soon_if(runs < 50);
  });
  Timer steady(loop, [&] { return ++runs, Timer::Pause(); });
  maker.request();
  EXPECT_TRUE(eventually([&] {
    steady.request();
    return runs >= 50;
  }));
}

TEST(Timer, EndsWhenItsLastRunHasEnded) {
  for (int round = 0; round < 100; ++round) {
    EventLoop loop;
    std::atomic<bool> is_running{false};
    {
      Timer timer(loop, [&] {
        is_running = true;
        std::this_thread::yield();
        is_running = false;
        return Timer::Pause(Timer::kAtOnce);
      });
      timer.request();
      for (int spin = 0; spin < round * 50; ++spin) is_running.load();
    }
    EXPECT_FALSE(is_running);
  }
}

TEST(Timer, RunsThoughItsProcessForksAgainAndAgain) {
  std::atomic<int> runs{0};
  EventLoop loop;
  Timer timer(loop, [&] { return ++runs, Timer::kSoon; });
  timer.request();
  EXPECT_TRUE(eventually([&] {
    loop.stop();
    loop.start_again();
    return runs >= 10;
  }));
}

TEST(Timer, OfAnAbandonedLoopDoesNothing) {
  EventLoop loop;
  Timer timer(loop, []() -> Timer::Pause {
    ADD_FAILURE() << "run";
    return {};
  });
  loop.abandon();
  timer.request();
}

TEST(EventLoop, TellsThatAProcessHasEnded) {
  Fd pidfd;
  std::atomic<bool> has_ended{false};
  Child child([] { ::pause(); });
  pidfd = open_pidfd(ProcessOrigin{child.pid(), process_start_time(child.pid())});
  EventLoop loop;
  loop.add(pidfd.get(), [&] {
    has_ended = true;
    loop.remove(pidfd.get());
  });
  Metronome().reach(3);
  EXPECT_FALSE(has_ended);
  child.kill();
  EXPECT_TRUE(eventually([&] { return has_ended.load(); }));
}

TEST(EventLoop, StopsAroundAForkAndMissesNothing) {
  Event event;
  std::atomic<int> calls{0}, runs{0};
  EventLoop loop;
  loop.add(event.fd(), [&] {
    event.clear();
    ++calls;
  });
  Timer timer(loop, [&] { return ++runs, Timer::Pause(); });
  loop.stop();
  event.set();
  timer.request();
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(runs, 0);
  loop.start_again();
  EXPECT_TRUE(eventually([&] { return calls == 1 && runs == 1; }));
}

/// A program's SIGINT or SIGCHLD handler runs on a thread that the program knows.
TEST(EventLoop, TakesNoSignalsAwayFromTheProgram) {
  Event event;
  std::atomic<int> blocked{-1};
  EventLoop loop;
  loop.add(event.fd(), [&] {
    event.clear();
    sigset_t mask;
    pthread_sigmask(SIG_BLOCK, nullptr, &mask);
    blocked = sigismember(&mask, SIGINT) && sigismember(&mask, SIGCHLD) && sigismember(&mask, SIGALRM);
  });
  event.set();
  EXPECT_TRUE(eventually([&] { return blocked == 1; }));
  sigset_t mask;
  pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  EXPECT_FALSE(sigismember(&mask, SIGINT));
}

/// This happens if one thread shares for the first time while another thread forks.
TEST(EventLoop, StoppedWhileItsThreadIsBeingStartedRunsTimersAfterwards) {
  for (int round = 0; round < 200; ++round) {
    std::atomic<bool> go{false}, has_run{false};
    EventLoop loop;
    Timer timer(loop, [&] { return has_run = true, Timer::Pause(); });
    std::thread starter([&] {
      go = true;
      timer.request();
    });
    while (!go) {
    }
    for (int spin = 0; spin < round * 20; ++spin) go.load();
    loop.stop();
    starter.join();
    loop.start_again();
    timer.request();
    ASSERT_TRUE(eventually([&] { return has_run.load(); })) << "no thread in round " << round;
  }
}

}  // namespace
}  // namespace onecopy
