// SPDX-License-Identifier: Apache-2.0
// Agents that are misused, overloaded, or short of what they need.
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/point.h"
#include "onecopy/core/error.h"
#include "os/file.h"
#include "rpc/node.h"
#include "rpc/workers.h"
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

TEST(AnAgent, ThatIsAssignedShutsDownTheOneBefore) {
  Watchdog watchdog;
  Agent other({.name = "other", .number = 3});
  Agent agent({.name = "one", .number = 1});
  agent.join(other.address());
  other.join(agent.address());
  define_usual(agent);
  EXPECT_EQ(number_of(other.call("one", "add one", number(1))), 2);
  agent = Agent({.name = "two", .number = 2});
  EXPECT_EQ(agent.name(), "two");
  expect_refusal(ErrorCode::peer_died, {"one has left the group"},
                 [&] { other.call("one", "add one", number(1)); });
}

TEST(AnAgent, CanBeShutDownByAFunctionThatItRuns) {
  Watchdog watchdog;
  Agent agent({.name = "one", .number = 1});
  agent.join(agent.address());
  agent.define("end", [&](Values&& values) {
    agent.shutdown();
    return std::move(values);
  });
  expect_refusal(ErrorCode::closed, {"has left the group"}, [&] { agent.call("one", "end"); });
}

TEST(AName, OfAMemberThatDiedStandsForTheOneThatCameBack) {
  Watchdog watchdog;
  Shared<Meeting> meeting;
  const auto program = [&](int i) {
    return Child([&meeting, i] {
      Agent agent({.name = "service", .number = static_cast<std::uint32_t>(i)});
      agent.define("who", [i](Values&&) { return number(i); });
      meeting->publish(i, agent);
      meeting->reach(1);
    });
  };
  Child first = program(1);
  Child second = program(2);
  Agent agent({.name = "caller", .number = 9});
  meeting->join(agent, 1);
  EXPECT_EQ(number_of(agent.call("service", "who")), 1);
  first.signal(SIGKILL);
  EXPECT_EQ(first.join(), -SIGKILL);
  EXPECT_TRUE(eventually([&] {
    try {
      agent.call("service", "who");
      return false;
    } catch (const Error& error) {
      return error.code() == ErrorCode::peer_died;
    }
  }));
  meeting->join(agent, 2);
  EXPECT_EQ(number_of(agent.call("service", "who")), 2);
  meeting->step = 1;
  EXPECT_EQ(second.join(), 0);
}

TEST(AFuture, MayBeWaitedForByTwoThreads) {
  Watchdog watchdog;
  Agent there({.name = "there", .number = 1}), here({.name = "here", .number = 2});
  std::atomic<bool> may_answer{false};
  there.define("slow", [&](Values&& values) {
    EXPECT_TRUE(eventually([&] { return may_answer.load(); }));
    return std::move(values);
  });
  here.join(there.address());
  for (int i = 0; i < 20; ++i) {
    may_answer = false;
    Future future = here.call_async("there", "slow");
    std::jthread other([&] { EXPECT_TRUE(future.wait_for(30s)); });
    std::jthread third([&] { may_answer = true; });
    EXPECT_TRUE(future.wait_for(30s));
    other.join();
    future.get();
  }
}

void stop_in_put(const char* point) noexcept {
  if (std::string_view(point) == "ring.put.committed") ::raise(SIGSTOP);
}

bool is_stopped(int pid) {
  const std::string text = try_read_text("/proc/" + std::to_string(pid) + "/stat").value_or(") ?");
  return text.substr(text.rfind(')') + 2, 1) == "T";
}

/// The greeter does not answer when the greeted member asks it for its lane.
TEST(AGreeter, ThatIsStoppedHoldsUpNoCallsToOthers) {
  Watchdog watchdog;
  Shared<Meeting> meeting;
  Child greeter([&] {
    Agent agent({.name = "greeter", .number = 2});
    meeting->join(agent, 0);
    point_hook = &stop_in_put;
    agent.call("greeted", "echo");
  });
  Agent agent({.name = "greeted", .number = 0}), other({.name = "other", .number = 1});
  define_usual(other);
  agent.join(other.address());
  other.join(agent.address());
  EXPECT_EQ(number_of(agent.call("other", "add one", number(1))), 2);
  meeting->publish(0, agent);
  EXPECT_TRUE(eventually([&] { return is_stopped(greeter.pid()); }));
  for (std::int64_t i = 0; i < 100; ++i)
    EXPECT_EQ(number_of(agent.call("other", "add one", number(i), 5s)), i + 1);
  greeter.kill();
}

/// A wait that meets this leaves the lead to the next one.
TEST(AWait, ThatRunsOutOfMemoryHoldsUpNoOtherWait) {
  Watchdog watchdog;
  Doorbell bell{};
  bool is_short = true;
  CallRef call = std::make_shared<Call>(1, kForever);
  CompletionWaiter* waiter = nullptr;
  const auto look = [&](const Call* mine) {
    if (std::exchange(is_short, false)) throw std::bad_alloc();
    waiter->complete(call, End::answered, Status::value, {}, mine);
  };
  CompletionWaiter made(bell, {[](int, const Call*) { return true; }, look}, [](const CallRef&) {});
  waiter = &made;
  EXPECT_THROW(made.wait(call, kForever), std::bad_alloc);
  EXPECT_FALSE(made.has_leader());
  EXPECT_TRUE(made.wait(call, kForever));
  EXPECT_EQ(call->end, End::answered);
}

/// All calls of the burst run at once, on a thread each.
TEST(WorkersOfABurst, EndWhenTheyHaveNothingToDo) {
  Watchdog watchdog;
  constexpr int kBurst = 40;
  constexpr std::size_t kFew = 8;
  std::atomic<int> running{0};
  std::atomic<bool> may_end{false};
  Node caller({"caller", 1}), callee({"callee", 2});
  Workers workers(callee, 64, [&](Work& work) {
    if (work.is_in_order) callee.end_order();
    if (work.kind == Work::Kind::service) callee.serve(work);
    if (work.kind != Work::Kind::call) return;
    ++running;
    EXPECT_TRUE(eventually([&] { return may_end.load(); }));
    callee.answer(*work.from, work.call, Status::value, {});
  });
  workers.add();
  Member& to = caller.join(callee.address());
  std::vector<CallRef> calls;
  for (int i = 0; i < kBurst; ++i)
    calls.push_back(caller.call(to, {{}, caller.functions().of("wait")}, kForever));
  EXPECT_TRUE(eventually([&] { return running == kBurst; }));
  EXPECT_GE(workers.count(), static_cast<std::size_t>(kBurst));
  may_end = true;
  for (const CallRef& call : calls)
    while (!caller.wait(call, kForever)) continue;
  EXPECT_TRUE(eventually([&] { return workers.count() < kFew; }));
  const CallRef again = caller.call(to, {{}, caller.functions().of("wait")}, kForever);
  while (!caller.wait(again, kForever)) continue;
  EXPECT_EQ(again->end, End::answered);
  caller.stop();
  callee.stop();
  workers.join();
}

/// Calls `times` times, and returns how many were sent before one was late.
int send_until_late(Agent& agent, int times) {
  for (int sent = 0; sent < times; ++sent) {
    try {
      agent.call_async("callee", "echo", text("x"), 1s);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::timeout) << error.what();
      return sent;
    }
  }
  return times;
}

TEST_F(AgentWithCallee, SendsABoundedNumberOfCallsToAMemberThatReadsNothing) {
  constexpr int kMany = 40'000;
  EXPECT_EQ(number_of(agent_.call("callee", "add one", number(1))), 2);
  callee_.signal(SIGSTOP);
  EXPECT_LT(send_until_late(agent_, kMany), kMany);
  callee_.signal(SIGCONT);
  EXPECT_EQ(number_of(agent_.call("callee", "add one", number(2))), 3);
}

TEST_F(AgentWithCallee, GivesUpCallsOfAllSizesToAMemberThatIsStopped) {
  EXPECT_EQ(number_of(agent_.call("callee", "add one", number(1))), 2);
  callee_.signal(SIGSTOP);
  for (const std::size_t size :
       {900, 5'000, 100'000})  // the first of a size asks the callee to retain memory
    expect_refusal(ErrorCode::timeout, {},
                   [&] { agent_.call("callee", "echo", text(std::string(size, 'x')), 100ms); });
  callee_.signal(SIGCONT);
}

}  // namespace
}  // namespace onecopy::rpc
