// SPDX-License-Identifier: Apache-2.0
#include "os/watch.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <map>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "failing_allocations.h"
#include "onecopy/core/error.h"
#include "os/event.h"
#include "os/log.h"
#include "support/eventually.h"
#include "support/limits.h"
#include "support/metronome.h"

namespace onecopy {
namespace {

using testing::eventually;
using testing::Metronome;
using Again = Watch::Again;

Again soon_if(bool wanted) { return wanted ? Again::soon : Again::no; }

// In each test the Watch comes last: its thread ends before the objects it uses.

TEST(Watch, CallsAHandlerOnItsOwnThreadWhileThereIsSomethingToRead) {
  Event event;
  std::atomic<int> calls{0};
  std::atomic<bool> elsewhere{false};
  Watch watch;
  watch.add(event.fd(), [&] {
    elsewhere = watch.runs_here();
    if (++calls == 3) event.clear();
  });
  EXPECT_FALSE(watch.runs_here());
  event.set();
  EXPECT_TRUE(eventually([&] { return calls == 3; }));
  EXPECT_TRUE(elsewhere);
}

TEST(Watch, CallsAnEdgeHandlerOnceAChangeAndAgainWhenRearmed) {
  Event edge, other;
  std::atomic<int> calls{0}, others{0};
  Watch watch;
  watch.add(
      edge.fd(), [&] { ++calls; }, true);
  watch.add(other.fd(), [&] {
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
  watch.rearm(edge.fd());
  EXPECT_TRUE(eventually([&] { return calls == 2; }));
}

TEST(Watch, CanWatchWhatItHadNoMemoryFor) {
  bool is_added = false;
  for (int allocations = 0; !is_added; ++allocations) {
    Event event;
    std::atomic<int> calls{0};
    Watch watch;
    watch.start();
    const auto count = [&] {
      event.clear();
      ++calls;
    };
    testing::allocations_left = allocations;
    try {
      watch.add(event.fd(), count);
      is_added = true;
    } catch (const std::bad_alloc&) {
    }
    testing::allocations_left = -1;
    if (!is_added) watch.add(event.fd(), count);
    event.set();
    EXPECT_TRUE(eventually([&] { return calls == 1; })) << "after " << allocations;
  }
}

TEST(Watch, ServesWhatIsThereBetweenHurriedTicks) {
  constexpr int kTicks = 100;  // two seconds of ordinary ones
  Event event;
  std::atomic<int> ticks{0}, served{0};
  Watch watch;
  watch.add(event.fd(), [&] {
    event.clear();
    ++served;
  });
  watch.add_tick([&] {
    EXPECT_EQ(served, ticks) << "what the tick before has left to do is done";
    event.set();
    watch.hurry();
    return soon_if(++ticks < kTicks);
  });
  watch.request_tick();
  EXPECT_TRUE(eventually([&] { return served == kTicks; }));
  EXPECT_EQ(ticks, kTicks);
}

TEST(Watch, RemovedHandlersAreNotCalledAndDestroyed) {
  Event removed, other;
  std::atomic<int> others{0};
  auto token = std::make_shared<int>(0);
  Watch watch;
  watch.add(removed.fd(), [token] { ADD_FAILURE() << "called after its removal"; });
  watch.remove(removed.fd());
  EXPECT_EQ(token.use_count(), 1);
  watch.add(other.fd(), [&] {
    other.clear();
    ++others;
  });
  removed.set();
  other.set();
  EXPECT_TRUE(eventually([&] { return others == 1; }));
  watch.remove(removed.fd());  // again, and a descriptor that was never added
  watch.remove(12345);
}

TEST(Watch, AHandlerMayRemoveItselfAndAddOthers) {
  Event first, second;
  std::atomic<int> calls{0};
  Watch watch;
  watch.add(first.fd(), [&] {
    watch.remove(first.fd());
    watch.add(second.fd(), [&] {
      second.clear();
      ++calls;
    });
    second.set();
  });
  first.set();
  EXPECT_TRUE(eventually([&] { return calls == 1; }));
}

TEST(Watch, WhatAHandlerThrowsStopsNothing) {
  Event bad, good;
  std::atomic<int> calls{0};
  Watch watch;
  watch.add(bad.fd(), [&] {
    bad.clear();
    throw std::runtime_error("a handler of a test");
  });
  watch.add(good.fd(), [&] {
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
  return said["onecopy's watch thread: " + text];
}

/// Throws what it is given, in order, each time that `event` is set.
void throw_in_order(Event& event, std::vector<Error> errors) {
  std::atomic<std::size_t> thrown{0};
  {
    Watch watch;
    watch.add(event.fd(), [&] {
      if (thrown + 1 == errors.size()) event.clear();
      throw Error(errors.at(thrown++));
    });
    event.set();
    EXPECT_TRUE(eventually([&] { return thrown == errors.size(); }));
  }  // the last is said when its thread has ended
}

TEST(Watch, SaysWhatHandlersThrowOnceATextAndALackOfDescriptorsOnce) {
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

TEST(Watch, TicksWhileSomebodyWantsItAndThenRests) {
  std::atomic<int> busy{0}, idle{0};
  Watch watch;
  watch.add_tick([&] { return soon_if(++busy < 3); });
  watch.add_tick([&] {
    ++idle;
    return Again::no;
  });
  watch.request_tick();
  EXPECT_TRUE(eventually([&] { return busy == 3 && idle == 3; }));
  watch.request_tick();
  EXPECT_TRUE(eventually([&] { return busy == 4 && idle == 4; }));
}

TEST(Watch, TicksEverMoreSeldomForWhatTakesAsLongAsItTakes) {
  std::atomic<int> ticks{0};
  Watch watch;
  watch.add_tick([&] {
    ++ticks;
    return Again::later;
  });
  watch.request_tick();
  Metronome().reach(60);
  EXPECT_LT(ticks, 45);
  EXPECT_GE(ticks, 3) << "and yet again and again";
}

TEST(Watch, TicksAsOftenAsEverForWhatIsNewOrNeededSoon) {
  std::atomic<int> asked{0}, soon{0};
  Watch one, other;
  one.add_tick([&] {
    ++asked;
    return Again::later;
  });
  other.add_tick([] { return Again::later; });
  other.add_tick([&] {
    ++soon;
    return Again::soon;
  });
  other.request_tick();
  Metronome([&] { one.request_tick(); }).reach(60);
  EXPECT_GE(asked, 30);
  EXPECT_GE(soon, 30);
}

TEST(Watch, TicksThoughItsProcessForksAgainAndAgain) {
  std::atomic<int> ticks{0};
  Watch watch;
  watch.add_tick([&] {
    ++ticks;
    return Again::soon;
  });
  watch.request_tick();
  EXPECT_TRUE(eventually([&] {
    watch.stop();
    watch.start_again();
    return ticks >= 10;
  }));
}

TEST(Watch, StopsAroundAForkAndMissesNothing) {
  Event event;
  std::atomic<int> calls{0}, ticks{0};
  Watch watch;
  watch.add(event.fd(), [&] {
    event.clear();
    ++calls;
  });
  watch.add_tick([&] {
    ++ticks;
    return Again::no;
  });
  watch.stop();
  event.set();
  watch.request_tick();
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(ticks, 0);
  watch.start_again();
  EXPECT_TRUE(eventually([&] { return calls == 1 && ticks == 1; }));
}

/// A program's SIGINT or SIGCHLD handler runs on a thread that the program knows.
TEST(Watch, TakesNoSignalsAwayFromTheProgram) {
  Event event;
  std::atomic<int> blocked{-1};
  Watch watch;
  watch.add(event.fd(), [&] {
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

/// As when one thread shares for the first time while another forks.
TEST(Watch, StoppedWhileItsThreadIsBeingStartedTicksAfterwards) {
  for (int round = 0; round < 200; ++round) {
    std::atomic<bool> go{false}, ticked{false};
    Watch watch;
    watch.add_tick([&] {
      ticked = true;
      return Again::no;
    });
    std::thread starter([&] {
      go = true;
      watch.request_tick();
    });
    while (!go) {
    }
    for (int spin = 0; spin < round * 20; ++spin) go.load();
    watch.stop();
    starter.join();
    watch.start_again();
    watch.request_tick();
    ASSERT_TRUE(eventually([&] { return ticked.load(); })) << "no thread in round " << round;
  }
}

}  // namespace
}  // namespace onecopy
