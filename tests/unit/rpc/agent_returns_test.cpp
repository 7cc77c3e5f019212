// SPDX-License-Identifier: Apache-2.0
// Members that leave before anyone has called them, and members that come back.
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "onecopy/core/error.h"
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

TEST(AMember, ThatLeftBeforeItsFirstCallIsReportedAsPeerDied) {
  Watchdog watchdog;
  Agent stays({.name = "stays", .number = 1}), leaves({.name = "leaves", .number = 2});
  stays.join(leaves.address());
  leaves.shutdown();
  expect_refusal(ErrorCode::peer_died, {}, [&] { stays.call("leaves", "f", {}, 10s); });
}

/// The only worker of the member is busy, so that it has not read the greeting when it leaves.
TEST(AMember, ThatLeavesTellsThoseWhoseGreetingItHasNotRead) {
  Watchdog watchdog;
  Agent leaves({.name = "leaves", .number = 1, .max_workers = 1});
  Agent first({.name = "first", .number = 2}), second({.name = "second", .number = 3});
  std::atomic<bool> is_busy{false}, may_end{false};
  leaves.define("stay", [&](Values&& values) {
    is_busy = true;
    EXPECT_TRUE(eventually([&] { return may_end.load(); }));
    return std::move(values);
  });
  first.join(leaves.address());
  second.join(leaves.address());
  Future stay = first.call_async("leaves", "stay");
  EXPECT_TRUE(eventually([&] { return is_busy.load(); }));
  std::jthread greeter([&] {
    expect_refusal(ErrorCode::peer_died, {"leaves"}, [&] { second.call("leaves", "stay", {}, 10s); });
  });
  std::jthread leaver([&] { leaves.shutdown(); });
  greeter.join();
  EXPECT_THROW(stay.get(), Error);  // while the function runs: its result could arrive before the notice
  may_end = true;
}

/// Starts a program "service" with number 1, whose function "who" returns `who`.
Child start(Shared<Meeting>& meeting, int who, const char* name = "service") {
  return Child([&meeting, who, name] {
    Agent agent({.name = name, .number = 1});
    agent.define("who", [who](Values&&) { return number(who); });
    agent.define("stay", [&](Values&& values) {
      meeting->reach(9);
      return std::move(values);
    });
    meeting->publish(who, agent);
    meeting->reach(who);
    agent.shutdown();
  });
}

void expect_peer_died(Agent& agent, const char* name) {
  EXPECT_TRUE(eventually([&] {
    try {
      agent.call(name, "who", {}, 10s);
      return false;
    } catch (const Error& error) {
      return error.code() == ErrorCode::peer_died;
    }
  }));
}

TEST(AProgram, ThatDiedComesBackUnderItsNameAndNumber) {
  Watchdog watchdog;
  Shared<Meeting> meeting;
  Child first = start(meeting, 1), second = start(meeting, 2);
  Agent agent({.name = "caller", .number = 9});
  meeting->join(agent, 1);
  EXPECT_EQ(number_of(agent.call("service", "who")), 1);
  expect_refusal(ErrorCode::invalid_argument, {"member 1 of the group is service"},
                 [&] { meeting->join(agent, 2); });  // while the first one lives
  Future pending = agent.call_async("service", "stay");
  first.kill();
  meeting->join(agent, 2);  // perhaps before this process has noticed the end
  EXPECT_EQ(number_of(agent.call("service", "who")), 2);
  expect_refusal(ErrorCode::peer_died, {}, [&] { pending.get(); });
  meeting->step = 2;
  EXPECT_EQ(second.join(), 0);
  expect_peer_died(agent, "service");
}

TEST(AProgram, ThatLeftComesBackAndCallsFirst) {
  Watchdog watchdog;
  Shared<Meeting> meeting;
  Child first = start(meeting, 1);
  Child second([&] {
    meeting->reach(3);
    Agent agent({.name = "service", .number = 1});
    meeting->join(agent, 0);
    EXPECT_EQ(number_of(agent.call("caller", "add one", number(1))), 2);
    agent.define("who", [](Values&&) { return number(2); });
    meeting->publish(2, agent);
    meeting->reach(4);
  });
  Agent agent({.name = "caller", .number = 9});
  define_usual(agent);
  meeting->join(agent, 1);
  EXPECT_EQ(number_of(agent.call("service", "who")), 1);
  meeting->step = 1;
  EXPECT_EQ(first.join(), 0);
  expect_peer_died(agent, "service");
  meeting->publish(0, agent);
  meeting->step = 3;
  meeting->join(agent, 2);
  EXPECT_EQ(number_of(agent.call("service", "who")), 2);
  meeting->step = 4;
  EXPECT_EQ(second.join(), 0);
}

TEST(AProgram, WithTheNumberOfAnotherIsToldSoByTheMemberThatItCalls) {
  Watchdog watchdog;
  Shared<Meeting> meeting;
  Child first = start(meeting, 1);
  Child second([&] {
    meeting->reach(1);
    Agent agent({.name = "another", .number = 1});
    meeting->join(agent, 0);
    expect_refusal(ErrorCode::peer_died, {"caller has refused this process", "a number of its own"},
                   [&] { agent.call("caller", "add one", number(1)); });
  });
  Agent agent({.name = "caller", .number = 9});
  define_usual(agent);
  meeting->join(agent, 1);
  EXPECT_EQ(number_of(agent.call("service", "who")), 1);
  meeting->publish(0, agent);
  meeting->step = 1;
  EXPECT_EQ(second.join(), 0);
}

TEST(AProgram, OfAnotherNameNeedsANumberOfItsOwn) {
  Watchdog watchdog;
  Shared<Meeting> meeting;
  Child first = start(meeting, 1), second = start(meeting, 2, "another");
  Agent agent({.name = "caller", .number = 9});
  meeting->join(agent, 1);
  EXPECT_EQ(number_of(agent.call("service", "who")), 1);
  first.kill();
  expect_peer_died(agent, "service");
  expect_refusal(ErrorCode::invalid_argument, {"service", "another"}, [&] { meeting->join(agent, 2); });
  meeting->step = 2;
  EXPECT_EQ(second.join(), 0);
}

}  // namespace
}  // namespace onecopy::rpc
