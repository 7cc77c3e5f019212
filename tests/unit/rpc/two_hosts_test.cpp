// SPDX-License-Identifier: Apache-2.0
// Members in two network namespaces with a cable between them, which is cut, slow, or lossy.
#include <gtest/gtest.h>

#include <numeric>
#include <thread>
#include <tuple>
#include <utility>

#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "support/refusal.h"
#include "support/two_networks.h"
#include "support/watchdog.h"
#include "unit/rpc/meeting.h"
#include "unit/rpc/tls_environment.h"

namespace onecopy::rpc {
namespace {

using namespace std::chrono_literals;
using testing::Child;
using testing::eventually;
using testing::Shared;
using testing::TwoNetworks;
using testing::Watchdog;

constexpr auto kLongTimeout = 60s;

/// A caller and a callee, each in a network of its own. The caller runs what a test gives it.
class TwoHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* const fabric = std::getenv("ONECOPY_RPC_FABRIC");
    for (const std::string& why : {TwoNetworks::obstacle(), ucx_obstacle(fabric ? fabric : "")})
      if (!why.empty()) GTEST_SKIP() << why;
  }
  void begin(std::function<void(Agent&)> run) {
    callee_.emplace([this] {
      enter(0);
      const Environment timeout("ONECOPY_RPC_PEER_TIMEOUT", callee_timeout_);
      Agent agent({.name = "callee", .number = 1});
      define_usual(agent);
      agent.define("count", [this](Values&&) { return number(++*calls_); });
      agent.define("call back", [&agent](Values&& values) {
        return agent.call("caller", "add one", std::move(values));
      });
      agent.define("wait", [](Values&& values) {
        std::this_thread::sleep_for(1h);
        return std::move(values);
      });
      meeting_->publish(1, agent);
      meeting_->reach(1);
      agent.shutdown();
    });
    caller_.emplace([this, run = std::move(run)] {
      enter(1);
      const Environment timeout("ONECOPY_RPC_PEER_TIMEOUT", caller_timeout_);
      Agent agent({.name = "caller", .timeout = kLongTimeout});
      define_usual(agent);
      meeting_->join(agent, 1);
      run(agent);
    });
    EXPECT_TRUE(eventually([this] { return entered_->load() == 2; }));
    networks_.emplace(callee_->pid(), caller_->pid());
    *has_cable_ = true;
  }
  /// The caller is so far.
  void await(int at) {
    EXPECT_TRUE(eventually([&] { return *step_ >= at; }, 2 * testing::kPatience));
  }
  void end() {
    EXPECT_EQ(caller_->join(), 0);
    meeting_->step = 1;
    EXPECT_EQ(callee_->join(), 0);
  }

  Watchdog watchdog_;
  Environment key_{"ONECOPY_RPC_KEY", kTestKey};
  const char *caller_timeout_ = "4", *callee_timeout_ = "4";
  Shared<Meeting> meeting_;
  Shared<std::atomic<int>> entered_, step_, calls_;
  Shared<std::atomic<bool>> has_cable_;
  std::optional<Child> callee_, caller_;
  std::optional<TwoNetworks> networks_;

 private:
  void enter(int) {
    testing::enter_network();
    entered_->fetch_add(1);
    ASSERT_TRUE(eventually([this] { return has_cable_->load(); }));
  }
};

Values tensor_of(std::int64_t bytes) { return {{}, {empty(Layout(DType::u8, {bytes}))}}; }

/// Of calls until one fails.
ErrorCode failure_of(const std::function<void()>& call) {
  for (;;) {
    try {
      call();
    } catch (const Error& error) {
      return error.code();
    }
  }
}

TEST_F(TwoHosts, CallEachOtherWithTensors) {
  begin([](Agent& agent) {
    EXPECT_EQ(number_of(agent.call("callee", "add one", number(1))), 2);
    for (const std::int64_t bytes : {1, 5000, 1 << 20, 32 << 20})
      EXPECT_EQ(agent.call("callee", "echo", tensor_of(bytes)).tensors.at(0).nbytes(), bytes);
  });
  end();
}

TEST_F(TwoHosts, AreCalledOverASlowAndLossyCable) {
  bool is_disturbed = true;
  begin([this](Agent& agent) {
    EXPECT_TRUE(eventually([this] { return *step_ == 1; }));
    for (int i = 0; i < 20; ++i) EXPECT_EQ(number_of(agent.call("callee", "add one", number(i))), i + 1);
    agent.call("callee", "echo", tensor_of(1 << 20));
  });
  is_disturbed = networks_->disturb("delay 20ms loss 2%");
  *step_ = 1;
  end();
  if (!is_disturbed) GTEST_SKIP() << "wants tc and netem";
}

TEST_F(TwoHosts, NoticeACutCableWhileNothingIsSent) {
  begin([this](Agent& agent) {
    agent.call("callee", "echo");
    Future waiting = agent.call_async("callee", "wait");
    *step_ = 1;
    EXPECT_EQ(failure_of([&] { waiting.get(); }), ErrorCode::peer_died);
  });
  await(1);
  networks_->cut();
  EXPECT_EQ(caller_->join(), 0);
}

TEST_F(TwoHosts, NoticeACutCableWhileATensorIsSent) {
  begin([this](Agent& agent) {
    EXPECT_EQ(failure_of([&] {
                agent.call("callee", "echo", tensor_of(16 << 20));
                *step_ = 1;
              }),
              ErrorCode::peer_died);
  });
  await(1);
  networks_->cut();
  EXPECT_EQ(caller_->join(), 0);
}

TEST_F(TwoHosts, GoOnAfterACutThatIsShorterThanTheirTimeout) {
  begin([this](Agent& agent) {
    agent.call("callee", "echo");
    *step_ = 1;
    EXPECT_TRUE(eventually([this] { return *step_ == 2; }));
    Future with_tensor = agent.call_async("callee", "echo", tensor_of(8 << 20));
    Future small = agent.call_async("callee", "add one", number(1));
    *step_ = 3;
    EXPECT_EQ(number_of(small.get()), 2);
    EXPECT_EQ(with_tensor.get().tensors.at(0).nbytes(), 8 << 20);
  });
  await(1);
  networks_->cut();
  *step_ = 2;
  await(3);
  networks_->mend();
  end();
}

/// A call that is under way when the cable is cut for too long fails, and does not run again; then the members call each other
/// in a new session, whichever of them has noticed the cut.
class TwoHostsThatWereCutOff : public TwoHosts,
                               public ::testing::WithParamInterface<std::pair<const char*, const char*>> {
 protected:
  TwoHostsThatWereCutOff() { std::tie(caller_timeout_, callee_timeout_) = GetParam(); }
};

TEST_P(TwoHostsThatWereCutOff, CallEachOtherAgainAndRunNothingTwice) {
  begin([this](Agent& agent) {
    EXPECT_EQ(number_of(agent.call("callee", "count")), 1);
    *step_ = 1;
    EXPECT_TRUE(eventually([this] { return *step_ == 2; }));
    Future under_way = agent.call_async("callee", "count", tensor_of(1 << 20));
    EXPECT_EQ(failure_of([&] { under_way.get(); }), ErrorCode::peer_died);
    EXPECT_EQ(failure_of([&] { agent.call("callee", "count"); }), ErrorCode::peer_died);
    *step_ = 3;
    EXPECT_TRUE(eventually([this] { return *step_ == 4; }));
    EXPECT_EQ(number_of(agent.call("callee", "count")), 2);
    EXPECT_EQ(number_of(agent.call("callee", "call back", number(5))), 6);
    EXPECT_EQ(agent.calls_under_way(), 0U);
  });
  await(1);
  networks_->cut();
  *step_ = 2;
  await(3);
  networks_->mend();
  *step_ = 4;
  end();
}

INSTANTIATE_TEST_SUITE_P(Timeouts, TwoHostsThatWereCutOff,
                         ::testing::Values(std::pair("1", "1"), std::pair("1", "60")),
                         [](const auto& timeouts) {
                           return timeouts.index == 0 ? "NoticedByBoth" : "NoticedByTheCallerAlone";
                         });

TEST_F(TwoHosts, NoticeAMemberThatIsKilledWhileATensorIsSent) {
  begin([this](Agent& agent) {
    EXPECT_EQ(failure_of([&] {
                agent.call("callee", "echo", tensor_of(16 << 20));
                *step_ = 1;
              }),
              ErrorCode::peer_died);
  });
  await(1);
  callee_->kill();
  EXPECT_EQ(caller_->join(), 0);
}

TEST_F(TwoHosts, WaitForTheDeadlineOfAMemberThatIsStopped) {
  begin([this](Agent& agent) {
    agent.call("callee", "echo");
    *step_ = 1;
    EXPECT_EQ(failure_of([&] { agent.call("callee", "echo", {}, 300ms); }), ErrorCode::timeout);
    *step_ = 2;
    EXPECT_TRUE(eventually([this] { return *step_ == 3; }));
    EXPECT_EQ(number_of(agent.call("callee", "add one", number(1))), 2);
  });
  await(1);
  callee_->signal(SIGSTOP);
  await(2);
  callee_->signal(SIGCONT);
  *step_ = 3;
  end();
}

}  // namespace
}  // namespace onecopy::rpc
