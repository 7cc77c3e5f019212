// SPDX-License-Identifier: Apache-2.0
#include "onecopy/rpc/agent.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "onecopy/core/error.h"
#include "onecopy/share/stats.h"
#include "support/die_at.h"
#include "support/limits.h"
#include "support/note.h"
#include "support/numbers.h"
#include "support/refusal.h"
#include "support/watchdog.h"
#include "unit/rpc/meeting.h"

namespace onecopy::rpc {
namespace {

using namespace std::chrono_literals;
using testing::Child;
using testing::eventually;
using testing::expect_refusal;
using testing::Shared;
using testing::Watchdog;

TEST(Agent, CallsAFunctionOfItsOwnProcess) {
  Watchdog watchdog;
  Agent agent({.name = "me"});
  define_usual(agent);
  EXPECT_EQ(agent.join(agent.address()), "me");
  EXPECT_EQ(text_of(agent.call("me", "echo", text("hello"))), "hello");
  const Tensor tensor = testing::numbers(10, 7);
  const Values back = agent.call("me", "echo", {{}, {tensor}});
  ASSERT_EQ(back.tensors.size(), 1U);
  EXPECT_EQ(back.tensors[0].data(), tensor.data());
}

TEST_F(AgentWithCallee, CallsAFunctionOfAnotherProcess) {
  for (std::int64_t i = 0; i < 1000; ++i)
    EXPECT_EQ(number_of(agent_.call("callee", "add one", number(i))), i + 1);
}

TEST(Agent, AndFutureThatWereMovedFromThrow) {
  Agent agent({.name = "agent"});
  agent.define("echo", [](Values&& values) { return std::move(values); });
  agent.join(agent.address());
  Future future = agent.call_async("agent", "echo");
  Future moved = std::move(future);
  Agent other = std::move(agent);
  for (const std::function<void()>& use : std::initializer_list<std::function<void()>>{
           [&] { agent.name(); }, [&] { agent.address(); }, [&] { agent.join({}); },
           [&] { agent.define("echo", {}); }, [&] { agent.define_plain("echo", {}); },
           [&] { agent.call("agent", "echo"); }, [&] { agent.call_async("agent", "echo"); },
           [&] { agent.call_plain("agent", "echo"); }, [&] { agent.calls_under_way(); },
           [&] { agent.shutdown(); }, [&] { future.get(); }, [&] { future.is_ready(); },
           [&] { future.wait_for(std::chrono::seconds(0)); }})
    expect_refusal(ErrorCode::closed, {"moved from"}, use);
  moved.get();
  other.call("agent", "echo");
}

TEST(Agent, LendsTensorsBothWays) {
  Watchdog watchdog;
  Shared<Meeting> meeting;
  Child callee = serve(meeting, [](Agent& agent) {
    agent.define("double", [](Values&& values) {
      auto* elements = values.tensors[0].as<std::int64_t>();
      for (std::int64_t i = 0; i < 10; ++i) elements[i] *= 2;
      return Values{{}, {testing::numbers(5, 100), values.tensors[0]}};
    });
  });
  Agent agent({.name = "caller"});
  meeting->join(agent, 1);
  const Tensor tensor = testing::numbers(10, 1);
  const Values back = agent.call("callee", "double", {{}, {tensor}});
  ASSERT_EQ(back.tensors.size(), 2U);
  EXPECT_EQ(testing::number_in(back.tensors[0]), 100);
  EXPECT_EQ(testing::last_of(tensor), 20);
  EXPECT_EQ(back.tensors[1].data(), tensor.data());
  meeting->step = 1;
  EXPECT_EQ(callee.join(), 0);
}

TEST_F(AgentWithCallee, CarriesLongValues) {
  for (const std::size_t size : {0, 1, 200, 1000, 100'000, 3'000'000}) {
    const std::string sent(size, 'x');
    EXPECT_EQ(text_of(agent_.call("callee", "echo", text(sent))), sent);
  }
}

TEST_F(AgentWithCallee, ThrowsAtTheCallerWhatTheFunctionThrew) {
  expect_refusal(ErrorCode::remote_error, {"On callee: it is broken"},
                 [&] { agent_.call("callee", "throw"); });
  expect_refusal(ErrorCode::read_only, {"On callee: not for you"},
                 [&] { agent_.call("callee", "refuse"); });
  expect_refusal(ErrorCode::invalid_argument, {"no function \"nothing\" is defined"},
                 [&] { agent_.call("callee", "nothing"); });
  expect_refusal(ErrorCode::invalid_argument, {"not a member of the group"},
                 [&] { agent_.call("nobody", "echo"); });
}

TEST_F(AgentWithCallee, HasManyCallsUnderWay) {
  std::vector<Future> futures;
  for (std::int64_t i = 0; i < 10'000; ++i)
    futures.push_back(agent_.call_async("callee", "add one", number(i)));
  for (std::int64_t i = 0; i < 10'000; ++i)
    EXPECT_EQ(number_of(futures[static_cast<std::size_t>(i)].get()), i + 1);
  EXPECT_EQ(agent_.calls_under_way(), 0U);
}

TEST_F(AgentWithCallee, IsCalledFromManyThreads) {
  std::atomic<std::int64_t> sum{0};
  {
    std::vector<std::jthread> threads;
    for (std::int64_t t = 0; t < 64; ++t)
      threads.emplace_back([&, t] {
        for (std::int64_t i = 0; i < 100; ++i)
          sum += number_of(agent_.call("callee", "add one", number(t))) - t;
      });
  }
  EXPECT_EQ(sum, 6400);
}

/// Each calls the other once more until nothing is left.
void define_descend(Agent& agent, const std::string& other) {
  agent.define("descend", [&agent, other](Values&& values) {
    const std::int64_t left = number_of(values);
    if (left == 0) return number(0);
    return number(number_of(agent.call(other, "descend", number(left - 1))) + 1);
  });
}

TEST(Agent, IsCalledBackAtAnyDepth) {
  Watchdog watchdog;
  Shared<Meeting> meeting;
  Agent* self = nullptr;
  Child callee([&] {
    Agent agent({.name = "callee", .number = 1});
    define_descend(agent, "caller");
    meeting->join(agent, 0);
    meeting->publish(1, agent);
    meeting->reach(1);
  });
  Agent agent({.name = "caller"});
  self = &agent;
  define_descend(*self, "callee");
  meeting->publish(0, agent);
  meeting->join(agent, 1);
  EXPECT_EQ(number_of(agent.call("callee", "descend", number(20))), 20);
  EXPECT_EQ(number_of(agent.call("callee", "descend", number(20))), 20);
  meeting->step = 1;
  EXPECT_EQ(callee.join(), 0);
}

/// With four threads in each process, and 20 calls that go back and forth six times.
TEST(Agent, DoesNotRunOutOfThreadsForCallsThatWaitForEachOther) {
  Watchdog watchdog;
  Shared<Meeting> meeting;
  Child callee([&] {
    Agent agent({.name = "callee", .number = 1, .max_workers = 4});
    define_descend(agent, "caller");
    meeting->join(agent, 0);
    meeting->publish(1, agent);
    meeting->reach(1);
  });
  Agent agent({.name = "caller", .max_workers = 4});
  define_descend(agent, "callee");
  meeting->publish(0, agent);
  meeting->join(agent, 1);
  std::vector<Future> futures;
  for (int i = 0; i < 20; ++i) futures.push_back(agent.call_async("callee", "descend", number(6)));
  for (Future& future : futures) EXPECT_EQ(number_of(future.get()), 6);
  meeting->step = 1;
  EXPECT_EQ(callee.join(), 0);
}

/// A worker that is about to come back takes the next call, so no thread is started for the call. Without that, the
/// burst starts all 1,024 threads of the limit.
TEST(Agent, StartsFewThreadsForABurstOfShortCalls) {
  Watchdog watchdog;
  Shared<Meeting> meeting;
  Child callee = serve(meeting, [](Agent& agent) {
    cpu_set_t one{};  // where a worker that is woken interrupts the worker that woke it
    CPU_SET(::sched_getcpu(), &one);
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task"))
      EXPECT_EQ(::sched_setaffinity(std::stoi(task.path().filename()), sizeof one, &one), 0);
    agent.define("count threads", [](Values&&) {
      const std::filesystem::directory_iterator tasks("/proc/self/task");
      return number(std::distance(begin(tasks), end(tasks)));
    });
  });
  Agent agent({.name = "caller"});
  meeting->join(agent, 1);
  std::int64_t most = 0;
  for (int round = 0; round < 5; ++round) {
    std::vector<Future> futures;
    for (int i = 0; i < 2000; ++i) futures.push_back(agent.call_async("callee", "add one", number(i)));
    for (int i = 0; i < 2000; ++i) EXPECT_EQ(number_of(futures[static_cast<std::size_t>(i)].get()), i + 1);
    most = std::max(most, number_of(agent.call("callee", "count threads")));
  }
  if (!testing::kSanitized) {  // a sanitizer's calls are not short
    EXPECT_LT(most, 500);
  }
  meeting->step = 1;
  EXPECT_EQ(callee.join(), 0);
}

TEST_F(AgentWithCallee, GivesUpAtTheDeadline) {
  EXPECT_EQ(number_of(agent_.call("callee", "add one", number(0))), 1);  // connected from here on
  expect_refusal(ErrorCode::timeout, {"callee has not answered a call in time"},
                 [&] { agent_.call("callee", "stay", {}, 20ms); });
  Future unwaited = agent_.call_async("callee", "stay", {}, 20ms);
  EXPECT_TRUE(eventually([&] { return unwaited.is_ready(); }));
  expect_refusal(ErrorCode::timeout, {}, [&] { unwaited.get(); });
  EXPECT_EQ(number_of(agent_.call("callee", "add one", number(1))), 2);
  EXPECT_EQ(agent_.calls_under_way(), 0U);
}

TEST_F(AgentWithCallee, LearnsThatAMemberWasKilled) {
  Future future = agent_.call_async("callee", "stay");
  EXPECT_EQ(number_of(agent_.call("callee", "add one", number(1))), 2);
  kill_callee();
  expect_refusal(ErrorCode::peer_died, {"callee has ended", "while it was called"}, [&] { future.get(); });
  expect_refusal(ErrorCode::peer_died, {"callee has ended"},
                 [&] { agent_.call("callee", "add one", number(1)); });
}

/// The caller is stopped, so the answer lies in its lane when the callee dies.
TEST(Agent, GetsWhatAMemberHadAnsweredBeforeItEnded) {
  Watchdog watchdog;
  Shared<Meeting> meeting;
  Shared<std::atomic<int>> step;
  Child callee = serve(meeting, [&](Agent& agent) {
    agent.define("answer and die", [&](Values&&) {
      *step = 1;
      EXPECT_TRUE(eventually([&] { return *step == 2; }));
      testing::die_at("rpc.answer.committed");
      return number(42);
    });
  });
  Child caller([&] {
    Agent agent({.name = "caller"});
    meeting->join(agent, 1);
    EXPECT_EQ(number_of(agent.call("callee", "answer and die")), 42);
  });
  EXPECT_TRUE(eventually([&] { return *step == 1; }));
  caller.signal(SIGSTOP);
  *step = 2;
  EXPECT_EQ(callee.join(), -SIGKILL);
  caller.signal(SIGCONT);
  EXPECT_EQ(caller.join(), 0);
}

TEST(Agent, LearnsThatAMemberHasLeft) {
  Watchdog watchdog;
  Shared<Meeting> meeting;
  Child callee = serve(meeting, [&](Agent& agent) {
    agent.define("leave", [&](Values&&) {
      meeting->step = 1;
      meeting->reach(2);
      return Values{};
    });
  });
  Agent agent({.name = "caller"});
  meeting->join(agent, 1);
  Future future = agent.call_async("callee", "leave");
  expect_refusal(ErrorCode::peer_died, {"callee has left the group while it was called"},
                 [&] { future.get(); });
  meeting->step = 2;
  EXPECT_EQ(callee.join(), 0);
}

TEST_F(AgentWithCallee, FailsItsCallsWhenItShutsDown) {
  std::atomic<bool> has_begun{false};
  std::thread waiting([&] {
    Future future = agent_.call_async("callee", "stay");
    has_begun = true;
    expect_refusal(ErrorCode::closed, {"caller has left the group"}, [&] { future.get(); });
  });
  EXPECT_TRUE(eventually([&] { return has_begun.load(); }));
  agent_.shutdown();
  waiting.join();
  expect_refusal(ErrorCode::closed, {}, [&] { agent_.call("callee", "echo"); });
}

PeerInfo peer_in_listing(std::size_t i) { return this_owner().groups.at(0).peers.at(i); }

TEST(Agent, IsListedWithItsPeersAndWhatWentToThem) {
  Watchdog watchdog;
  Shared<Meeting> meeting;
  Child callee = serve(meeting, [&](Agent& agent) {
    agent.define("wait", [&](Values&&) {
      meeting->reach(1);
      return Values{};
    });
  });
  {
    Agent agent({.name = "caller", .number = 7});
    meeting->join(agent, 1);
    EXPECT_EQ(peer_in_listing(0).state, "new");
    agent.call("callee", "echo", {{}, {testing::numbers(10, 1), testing::numbers(10, 1)}});
    Future future = agent.call_async("callee", "wait");
    const GroupInfo group = this_owner().groups.at(0);
    EXPECT_EQ(group.name, "caller");
    EXPECT_EQ(group.number, 7U);
    EXPECT_EQ(group.calls_under_way, 1U);
    const PeerInfo peer = peer_in_listing(0);
    EXPECT_EQ(peer.name, "callee");
    EXPECT_EQ(peer.pid, callee.pid());
    EXPECT_EQ(peer.state, "open");
    EXPECT_EQ(peer.lanes, 2U);
    EXPECT_EQ(peer.calls_under_way, 1U);
    EXPECT_EQ(peer.calls, 2U);
    EXPECT_EQ(peer.answers, 1U);
    EXPECT_EQ(peer.routes, (std::vector<std::pair<std::string, std::uint64_t>>{{"lease", 2}}));
    callee.kill();
    expect_refusal(ErrorCode::peer_died, {}, [&] { future.get(); });
    EXPECT_EQ(peer_in_listing(0).state, "ended");
  }
  EXPECT_TRUE(this_owner().groups.empty());
}

TEST_F(AgentWithCallee, IsNotForForkedChildren) {
  Future future = agent_.call_async("callee", "stay", number(5));
  Child child([&] {
    expect_refusal(ErrorCode::unsupported, {"rpc does not survive fork()"},
                   [&] { agent_.call("callee", "echo"); });
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  });
  EXPECT_EQ(child.join(), 0);
  EXPECT_EQ(text_of(agent_.call("callee", "echo", text("still"))), "still");
  EXPECT_FALSE(future.is_ready());
  kill_callee();
  expect_refusal(ErrorCode::peer_died, {}, [&] { future.get(); });
}

}  // namespace
}  // namespace onecopy::rpc
