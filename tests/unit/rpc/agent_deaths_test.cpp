// SPDX-License-Identifier: Apache-2.0
// Members die by SIGKILL at each named point of a call, or stop there; the others go on.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>
#include <vector>

#include "onecopy/core/error.h"
#include "support/die_at.h"
#include "support/refusal.h"
#include "support/watchdog.h"
#include "unit/rpc/meeting.h"

namespace onecopy::rpc {
namespace {

using namespace std::chrono_literals;
using testing::Child;
using testing::expect_refusal;
using testing::Shared;
using testing::Watchdog;

std::string point_name(const ::testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

/// Calls until that fails; how many were answered.
int call_until_death(Agent& agent) {
  for (int answered = 0;; ++answered) {
    try {
      agent.call("callee", "add one", number(1));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::peer_died) << error.what();
      return answered;
    }
  }
}

class CalleeDies : public ::testing::TestWithParam<const char*> {};

TEST_P(CalleeDies, TheCallerLearnsOfItAndCallsOthers) {
  Watchdog watchdog;
  Shared<Meeting> meeting;
  Child callee = serve(meeting, [](Agent&) { testing::die_at(GetParam()); });
  Child other([&] {
    Agent agent({.name = "other", .number = 2});
    define_usual(agent);
    meeting->publish(2, agent);
    meeting->reach(1);
  });
  Agent agent({.name = "caller", .timeout = 0s});
  meeting->join(agent, 1);
  meeting->join(agent, 2);
  const int answered = call_until_death(agent);
  EXPECT_EQ(callee.join(), -SIGKILL);
  EXPECT_EQ(answered, std::string(GetParam()) == "rpc.answer.committed" ? 1 : 0);
  EXPECT_EQ(number_of(agent.call("other", "add one", number(1))), 2);
  EXPECT_EQ(agent.calls_under_way(), 0U);
  meeting->step = 1;
  EXPECT_EQ(other.join(), 0);
}

INSTANTIATE_TEST_SUITE_P(Points, CalleeDies,
                         ::testing::Values("rpc.lane.opened", "rpc.call.taken", "rpc.serve.running",
                                           "rpc.answer.committed"),
                         point_name);

class CallerDies : public ::testing::TestWithParam<const char*> {};

TEST_P(CallerDies, TheCalleeServesOthers) {
  Watchdog watchdog;
  Shared<Meeting> meeting;
  Child callee = serve(meeting);
  Child victim([&] {
    Agent caller({.name = "victim", .number = 0, .spin = 0ns});
    meeting->join(caller, 1);
    testing::die_at(GetParam());
    for (;;) caller.call("callee", "add one", number(1));
  });
  EXPECT_EQ(victim.join(), -SIGKILL);
  Child other([&] {
    Agent caller({.name = "other", .number = 2});
    meeting->join(caller, 1);
    EXPECT_EQ(number_of(caller.call("callee", "add one", number(1))), 2);
  });
  EXPECT_EQ(other.join(), 0);
  meeting->step = 1;
  EXPECT_EQ(callee.join(), 0);
}

INSTANTIATE_TEST_SUITE_P(Points, CallerDies,
                         ::testing::Values("rpc.lane.greeted", "rpc.call.committed", "rpc.wait.armed",
                                           "rpc.answer.taken", "rpc.wait.deserted"),
                         point_name);

/// Each round's caller is a process of its own: connections to killed processes do not add up.
TEST(Deaths, AtAnyMomentEndCallsWithAnAnswerOrAnError) {
  Watchdog watchdog;
  std::mt19937 random(1);  // NOLINT(cert-msc51-cpp): a failure repeats more often so
  for (int round = 0; round < 20; ++round) {
    const std::chrono::microseconds moment(random() % 5000);
    Shared<Meeting> meeting;
    Child callee = serve(meeting);
    Child caller([&] {
      Agent agent({.name = "caller", .timeout = 0s});
      meeting->join(agent, 1);
      std::vector<std::jthread> threads;
      for (int t = 0; t < 4; ++t) threads.emplace_back([&] { call_until_death(agent); });
      std::this_thread::sleep_for(moment);
      callee.signal(SIGKILL);
    });
    EXPECT_EQ(caller.join(), 0);
  }
}

TEST_F(AgentWithCallee, IsAnsweredByAMemberThatWasStoppedForAWhile) {
  EXPECT_EQ(number_of(agent_.call("callee", "add one", number(1))), 2);
  callee_.signal(SIGSTOP);
  expect_refusal(ErrorCode::timeout, {}, [&] { agent_.call("callee", "add one", number(1), 50ms); });
  callee_.signal(SIGCONT);
  EXPECT_EQ(number_of(agent_.call("callee", "add one", number(2))), 3);
}

}  // namespace
}  // namespace onecopy::rpc
