// SPDX-License-Identifier: Apache-2.0
// What every transport promises: each test runs over all of them.
#include "rpc/transport.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "onecopy/core/error.h"
#include "support/die_at.h"
#include "support/numbers.h"
#include "support/refusal.h"
#include "unit/rpc/meeting.h"
#include "unit/rpc/tls_environment.h"

namespace onecopy::rpc {
namespace {

using namespace std::chrono_literals;
using testing::Child;
using testing::eventually;
using testing::expect_refusal;
using testing::Shared;
using testing::Watchdog;

/// Members that reach each other through the transport of that name.
class ATransport : public ::testing::TestWithParam<std::string> {
 protected:
  ATransport() {
    if (GetParam() == "ring") return;
    key_.emplace("ONECOPY_RPC_KEY", kTestKey);
    link_.emplace("ONECOPY_RPC_LINK", "tcp");
    listen_.emplace("ONECOPY_RPC_LISTEN", "127.0.0.1:0");
    fabric_.emplace("ONECOPY_RPC_FABRIC", GetParam());
  }
  void SetUp() override {
    if (const std::string why = ucx_obstacle(GetParam()); !why.empty()) GTEST_SKIP() << why;
  }
  void end(Child& callee) {
    meeting_->step = 1;
    EXPECT_EQ(callee.join(), 0);
  }

  Watchdog watchdog_;
  std::optional<Environment> key_, link_, listen_, fabric_;
  Shared<Meeting> meeting_;
};

/// Calls until that fails.
ErrorCode failure_of(const std::function<void()>& call) {
  for (;;) {
    try {
      call();
    } catch (const Error& error) {
      return error.code();
    }
  }
}

TEST_P(ATransport, CarriesCallsOfAllSizesInBothDirections) {
  Child callee = serve(meeting_, [](Agent& agent) {
    agent.define("back",
                 [&agent](Values&& values) { return agent.call("caller", "echo", std::move(values)); });
  });
  Agent agent({.name = "caller"});
  define_usual(agent);
  meeting_->join(agent, 1);
  for (const std::size_t size : {0, 1, 200, 5'000, 1'000'000}) {
    const std::string sent(size, 'x');
    EXPECT_EQ(text_of(agent.call("callee", "back", text(sent))), sent);
  }
  end(callee);
}

TEST_P(ATransport, CarriesTensors) {
  Child callee = serve(meeting_);
  Agent agent({.name = "caller"});
  meeting_->join(agent, 1);
  for (const std::int64_t count : {0, 1, 1'000, 1'000'000}) {
    const Values back = agent.call("callee", "echo", {{}, {testing::numbers(count, 3)}});
    ASSERT_EQ(back.tensors.size(), 1U);
    EXPECT_EQ(back.tensors[0].layout(), Layout(DType::i64, {count}));
    if (count == 0) continue;
    EXPECT_EQ(testing::last_of(back.tensors[0]), testing::last_of(testing::numbers(count, 3)));
  }
  end(callee);
}

TEST_P(ATransport, OpensOneConnectionForManyFirstCalls) {
  Child callee = serve(meeting_);
  Agent agent({.name = "caller"});
  meeting_->join(agent, 1);
  std::vector<std::jthread> threads;
  for (std::int64_t i = 0; i < 8; ++i)
    threads.emplace_back(
        [&, i] { EXPECT_EQ(number_of(agent.call("callee", "add one", number(i))), i + 1); });
  threads.clear();
  end(callee);
}

TEST_P(ATransport, TellsOfAMemberThatLeaves) {
  Child callee = serve(meeting_);
  Agent agent({.name = "caller", .timeout = 0s});
  meeting_->join(agent, 1);
  EXPECT_EQ(number_of(agent.call("callee", "add one", number(1))), 2);
  end(callee);
  expect_refusal(ErrorCode::peer_died, {"callee"}, [&] {
    for (;;) agent.call("callee", "add one", number(1));
  });
  EXPECT_EQ(agent.calls_under_way(), 0U);
}

TEST_P(ATransport, TellsOfAMemberThatIsKilledInACall) {
  Child callee = serve(meeting_, [](Agent&) { testing::die_at("rpc.serve.running"); });
  Agent agent({.name = "caller", .timeout = 0s});
  meeting_->join(agent, 1);
  expect_refusal(ErrorCode::peer_died, {"callee"}, [&] { agent.call("callee", "add one", number(1)); });
  EXPECT_EQ(callee.join(), -SIGKILL);
}

/// The call ends with a typed error wherever within the tensor the member is killed.
TEST_P(ATransport, TellsOfAMemberThatIsKilledWhileALargeTensorIsSent) {
  constexpr int kRounds = 10;
  const Values large{{}, {testing::numbers(16 << 20, 1)}};
  for (int round = 0; round < kRounds; ++round) {
    Shared<Meeting> meeting;
    Child callee = serve(meeting);
    Agent agent({.name = "caller", .timeout = 0s});
    meeting->join(agent, 1);
    EXPECT_EQ(number_of(agent.call("callee", "add one", number(1))), 2);
    std::jthread caller([&] {
      const auto call = [&] { agent.call("callee", "echo", Values{{}, large.tensors}); };
      EXPECT_EQ(failure_of(call), ErrorCode::peer_died);
    });
    std::this_thread::sleep_for(3ms * round);
    callee.kill();
    caller.join();
    EXPECT_EQ(callee.join(), -SIGKILL);
  }
}

TEST_P(ATransport, IsLateWithAMemberThatIsStopped) {
  Child callee = serve(meeting_);
  Agent agent({.name = "caller"});
  meeting_->join(agent, 1);
  EXPECT_EQ(number_of(agent.call("callee", "add one", number(1))), 2);
  callee.signal(SIGSTOP);
  expect_refusal(ErrorCode::timeout, {}, [&] { agent.call("callee", "add one", number(1), 50ms); });
  callee.signal(SIGCONT);
  EXPECT_EQ(number_of(agent.call("callee", "add one", number(2))), 3);
  end(callee);
}

TEST_P(ATransport, KeepsTheOrderOfAThreadsMessages) {
  Shared<std::atomic<std::int64_t>> last, out_of_order;
  Child callee = serve(meeting_, [&](Agent& agent) {
    agent.define("next", [&](Values&& values) {
      const std::int64_t n = number_of(values);
      if (last->exchange(n) > n) out_of_order->fetch_add(1);
      return Values{};
    });
  });
  Agent agent({.name = "caller"});
  meeting_->join(agent, 1);
  for (std::int64_t n = 1; n <= 500; ++n) agent.call("callee", "next", number(n));
  EXPECT_EQ(*last, 500);
  EXPECT_EQ(*out_of_order, 0);
  end(callee);
}

TEST_P(ATransport, CarriesTenThousandCallsThatAreUnderWayAtOnce) {
  Child callee = serve(meeting_);
  Agent agent({.name = "caller"});
  meeting_->join(agent, 1);
  std::vector<Future> futures;
  for (std::int64_t n = 0; n < 10'000; ++n)
    futures.push_back(agent.call_async("callee", "add one", number(n)));
  for (std::int64_t n = 0; n < 10'000; ++n)
    ASSERT_EQ(number_of(futures[static_cast<std::size_t>(n)].get()), n + 1);
  EXPECT_EQ(agent.calls_under_way(), 0U);
  end(callee);
}

TEST_P(ATransport, TakesALargeTensorOrSaysThatItWasLate) {
  constexpr std::int64_t kNumbers = 8 << 20;
  Child callee = serve(meeting_);
  Agent agent({.name = "caller"});
  meeting_->join(agent, 1);
  EXPECT_EQ(number_of(agent.call("callee", "add one", number(1))), 2);
  callee.signal(SIGSTOP);
  expect_refusal(ErrorCode::timeout, {}, [&] {
    agent.call("callee", "echo", {{}, {testing::numbers(kNumbers, 1)}}, 200ms);
  });
  callee.signal(SIGCONT);
  const Values back = agent.call("callee", "echo", {{}, {testing::numbers(kNumbers, 5)}});
  EXPECT_EQ(testing::last_of(back.tensors.at(0)), testing::last_of(testing::numbers(kNumbers, 5)));
  end(callee);
}

TEST_P(ATransport, TakesNoMoreCallsThanItHasRoomFor) {
  constexpr int kTooMany = 100'000;
  Child callee = serve(meeting_);
  Agent agent({.name = "caller"});
  meeting_->join(agent, 1);
  EXPECT_EQ(number_of(agent.call("callee", "add one", number(1))), 2);
  callee.signal(SIGSTOP);
  const std::string filling(4096, 'x');
  std::vector<Future> futures;
  expect_refusal(ErrorCode::timeout, {}, [&] {
    for (int i = 0; i < kTooMany; ++i)
      futures.push_back(agent.call_async("callee", "echo", text(filling), 500ms));
  });
  callee.signal(SIGCONT);
  futures.clear();
  EXPECT_EQ(number_of(agent.call("callee", "add one", number(2))), 3);
  end(callee);
}

TEST_P(ATransport, ClosesWhileOthersSend) {
  Child callee = serve(meeting_);
  std::optional<Agent> agent(std::in_place, AgentOptions{.name = "caller"});
  meeting_->join(*agent, 1);
  EXPECT_EQ(number_of(agent->call("callee", "add one", number(1))), 2);
  std::vector<std::jthread> threads;
  for (std::int64_t i = 0; i < 3; ++i)
    threads.emplace_back([&] {
      const auto call = [&] { agent->call("callee", "echo", {{}, {testing::numbers(100'000, 1)}}); };
      EXPECT_EQ(failure_of(call), ErrorCode::closed);
    });
  std::this_thread::yield();
  agent->shutdown();
  threads.clear();
  end(callee);
}

INSTANTIATE_TEST_SUITE_P(Transports, ATransport, ::testing::Values("ring", "tls", "ucx"),
                         [](const auto& transport) { return transport.param; });

}  // namespace
}  // namespace onecopy::rpc
