// SPDX-License-Identifier: Apache-2.0
// Members in two network namespaces with a cable between them, which is cut, slow, or lossy.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <numeric>
#include <random>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>

#include "core/point.h"
#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "os/fd.h"
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
constexpr std::size_t kMaxRuns = 1 << 20;

/// A few faults by default; ONECOPY_TEST_FAULTS=300 makes many.
int fault_rounds() {
  const char* const text = std::getenv("ONECOPY_TEST_FAULTS");
  return text ? std::atoi(text) : 6;
}

/// A caller and a callee, each in a network of its own. The caller runs what a test gives it.
class TwoHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const std::string& why : {TwoNetworks::obstacle(), ucx_obstacle(is_over_ucx() ? "ucx" : "")})
      if (!why.empty()) GTEST_SKIP() << why;
  }
  static bool is_over_ucx() {
    const char* const fabric = std::getenv("ONECOPY_RPC_FABRIC");
    return fabric && std::string_view(fabric) == "ucx";
  }
  void begin(std::function<void(Agent&)> run) {
    callee_.emplace([this] {
      enter(0);
      be_host_of_callee();
    });
    caller_.emplace([this, run = std::move(run)] {
      enter(1);
      const Environment timeout("ONECOPY_RPC_PEER_TIMEOUT", caller_timeout_);
      Agent agent({.name = "caller", .timeout = kLongTimeout});
      define_usual(agent);
      join_callee(agent);
      run(agent);
    });
    EXPECT_TRUE(eventually([this] { return entered_->load() == 2; }));
    networks_.emplace(callee_->pid(), caller_->pid(), TwoNetworks::Cable::carried);
    if (is_cut_at_first_) networks_->cut();
    *has_cable_ = true;
  }
  /// Answers calls until the test ends.
  void be_callee(int number, Meeting& meeting) {
    const Environment timeout("ONECOPY_RPC_PEER_TIMEOUT", callee_timeout_);
    Agent agent({.name = "callee", .number = static_cast<std::uint32_t>(number)});
    define_usual(agent);
    agent.define("run", [this](Values&& values) {
      ++(*runs_)[static_cast<std::size_t>(number_of(values))];
      return std::move(values);
    });
    agent.define("count", [this](Values&&) { return rpc::number(++*calls_); });
    agent.define("call back",
                 [&agent](Values&& values) { return agent.call("caller", "add one", std::move(values)); });
    agent.define("wait", [](Values&& values) {
      std::this_thread::sleep_for(1h);
      return std::move(values);
    });
    meeting.publish(1, agent);
    EXPECT_TRUE(
        eventually([this] { return meeting_->step == 1; }, 2 * testing::kPatience + fault_rounds() * 4s));
    agent.shutdown();
  }
  virtual void be_host_of_callee() { be_callee(1, *meeting_); }
  virtual void join_callee(Agent& agent) { meeting_->join(agent, 1); }
  /// Waits until the caller is so far.
  void await(int at) {
    EXPECT_TRUE(eventually([&] { return *step_ >= at; }, 2 * testing::kPatience));
  }
  /// Makes calls while the connection is away for less than the timeout.
  void expect_to_go_on_after(void (TwoNetworks::*cut)(), void (TwoNetworks::*mend)()) {
    begin([this](Agent& agent) {
      agent.call("callee", "echo");
      *step_ = 1;
      EXPECT_TRUE(eventually([this] { return *step_ == 2; }));
      Future with_tensor = agent.call_async("callee", "echo", {{}, {empty(Layout(DType::u8, {8 << 20}))}});
      Future small = agent.call_async("callee", "add one", number(1));
      *step_ = 3;
      EXPECT_EQ(number_of(small.get()), 2);
      EXPECT_EQ(with_tensor.get().tensors.at(0).nbytes(), 8 << 20);
    });
    await(1);
    (*networks_.*cut)();
    *step_ = 2;
    await(3);
    (*networks_.*mend)();
    end();
  }
  void end() {
    EXPECT_EQ(caller_->join(), 0);
    meeting_->step = 1;
    EXPECT_EQ(callee_->join(), 0);
  }

  /// The steps of the test that runs, for a hook, which has no state of its own.
  inline static std::atomic<int>* hooked_step = nullptr;
  bool is_cut_at_first_ = false;
  Watchdog watchdog_{Watchdog::kLimit + fault_rounds() * 4s};
  Environment key_{"ONECOPY_RPC_KEY", kTestKey};
  const char *caller_timeout_ = "4", *callee_timeout_ = "4";
  Shared<Meeting> meeting_;
  Shared<std::atomic<int>> entered_, step_, calls_;
  Shared<std::array<std::atomic<int>, kMaxRuns>> runs_;
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
  begin([this](Agent& agent) {
    EXPECT_TRUE(eventually([this] { return *step_ == 1; }));
    for (int i = 0; i < 20; ++i) EXPECT_EQ(number_of(agent.call("callee", "add one", number(i))), i + 1);
    agent.call("callee", "echo", tensor_of(1 << 20));
  });
  networks_->disturb(20ms, 0.02);
  *step_ = 1;
  end();
}

/// A process that started while its interface was down used to listen on loopback alone.
TEST_F(TwoHosts, ReachAMemberThatStartedWhileItsCableWasCut) {
  is_cut_at_first_ = true;
  begin([](Agent& agent) { EXPECT_EQ(number_of(agent.call("callee", "add one", number(1))), 2); });
  EXPECT_TRUE(eventually([this] { return meeting_->addresses[1].size != 0; }));
  networks_->mend();
  end();
}

/// "No route to host" used to fail the first call at once.
TEST_F(TwoHosts, ReachAMemberToWhichThereWasNoRoute) {
  begin([this](Agent& agent) {
    EXPECT_TRUE(eventually([this] { return *step_ == 1; }));
    auto first = std::async(std::launch::async, [&] { return agent.call("callee", "add one", number(1)); });
    EXPECT_EQ(first.wait_for(500ms), std::future_status::timeout);
    *step_ = 2;
    EXPECT_EQ(number_of(first.get()), 2);
  });
  networks_->make_unreachable();
  *step_ = 1;
  await(2);
  networks_->make_reachable();
  end();
}

/// "No route to host" within UCX used to end the session.
TEST_F(TwoHosts, ReachAMemberToWhichUcxHadNoRoute) {
  if (!is_over_ucx()) GTEST_SKIP() << "is about UCX";
  begin([this](Agent& agent) {
    hooked_step = &*step_;
    point_hook = [](const char* name) noexcept {
      if (std::string_view(name) == "rpc.fabric.connecting" && hooked_step->load() == 0) {
        *hooked_step = 1;
        EXPECT_TRUE(eventually([] { return hooked_step->load() == 2; }));
      }
      if (std::string_view(name) == "rpc.fabric.missed") *hooked_step = 3;
    };
    EXPECT_EQ(number_of(agent.call("callee", "add one", number(1))), 2);
    point_hook = nullptr;
  });
  await(1);
  networks_->make_unreachable();
  *step_ = 2;
  await(3);
  networks_->make_reachable();
  end();
}

/// The caller's worker of UCX is made while there is loopback alone.
class TwoHostsOfWhichOneKnewLoopbackAlone : public TwoHosts {
 protected:
  void be_host_of_callee() override {
    ::unsetenv("ONECOPY_UCX_NET_DEVICES");
    TwoHosts::be_host_of_callee();
  }
  Environment devices_{"ONECOPY_UCX_NET_DEVICES", "lo"};
};

TEST_F(TwoHostsOfWhichOneKnewLoopbackAlone, CallEachOtherOnceThereIsMore) {
  begin([](Agent& agent) {
    auto first = std::async(std::launch::async, [&] { return agent.call("callee", "add one", number(1)); });
    if (is_over_ucx()) {
      EXPECT_EQ(first.wait_for(500ms), std::future_status::timeout);
    }
    ::unsetenv("ONECOPY_UCX_NET_DEVICES");
    EXPECT_EQ(number_of(first.get()), 2);
  });
  end();
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
  expect_to_go_on_after(&TwoNetworks::cut, &TwoNetworks::mend);
}

TEST_F(TwoHosts, GoOnAfterThereWasNoRouteForLessThanTheirTimeout) {
  expect_to_go_on_after(&TwoNetworks::make_unreachable, &TwoNetworks::make_reachable);
}

/// Returns whether the kernel limits the pauses of a connection.
bool limits_pauses() {
  constexpr int kMaxPause = 44, kMs = 1000;  // TCP_RTO_MAX_MS
  const Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return ::setsockopt(socket.get(), IPPROTO_TCP, kMaxPause, &kMs, sizeof kMs) == 0;
}

/// Packets are lost silently, as in a network between the hosts. TCP's pauses between its attempts double: the connection used
/// to end where the attempt after the cut would have come after the timeout.
TEST_F(TwoHosts, GoOnAfterASilentCutOfMoreThanHalfTheirTimeout) {
  if (!limits_pauses()) GTEST_SKIP() << "wants a kernel with TCP_RTO_MAX_MS (Linux 6.15)";
  caller_timeout_ = callee_timeout_ = "6";
  begin([this](Agent& agent) {
    agent.call("callee", "echo");
    Future waiting = agent.call_async("callee", "wait");
    *step_ = 1;
    EXPECT_TRUE(eventually([this] { return *step_ == 2; }));
    EXPECT_EQ(number_of(agent.call("callee", "add one", number(1))), 2);
    EXPECT_FALSE(waiting.wait_for(0s));
  });
  await(1);
  networks_->disturb(0ms, 1);
  *step_ = 2;
  std::this_thread::sleep_for(3500ms);
  networks_->undisturb();
  EXPECT_EQ(caller_->join(), 0);
}

/// The kernel may measure its timeout from the first of several cuts.
TEST_F(TwoHosts, GoOnAfterSeveralCutsThatAreShorterThanTheirTimeout) {
  begin([this](Agent& agent) {
    agent.call("callee", "echo");
    Future waiting = agent.call_async("callee", "wait");
    *step_ = 1;
    while (*step_ < 2) agent.call("callee", "echo");
    EXPECT_FALSE(waiting.wait_for(0s));
  });
  await(1);
  for (int i = 0; i < 3; ++i) {
    networks_->cut();
    std::this_thread::sleep_for(1300ms);
    networks_->mend();
    std::this_thread::sleep_for(2500ms);
  }
  *step_ = 2;
  EXPECT_EQ(caller_->join(), 0);
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

int open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<int>(std::distance(begin(all), end(all)));
}

/// Random faults: cut cables, for less and for more than the timeout, stopped members, members that are killed and come back as
/// new processes, and slow and lossy cables.
class TwoHostsWithFaults : public TwoHosts {
 protected:
  static constexpr int kMaxCallees = 200;

  TwoHostsWithFaults() { caller_timeout_ = callee_timeout_ = "1"; }

  void be_host_of_callee() override {
    for (int number = 1; number < kMaxCallees && meeting_->step != 1; ++number) {
      Child member([this, number] { be_callee(number, (*meetings_)[static_cast<std::size_t>(number)]); });
      *member_ = member.pid();
      EXPECT_TRUE(eventually([&] { return member.has_ended(); }, Watchdog::kLimit + fault_rounds() * 4s));
      *member_ = 0;
      const int status = member.join();
      EXPECT_TRUE(status == 0 || status == -SIGKILL) << status;
    }
  }
  void join_callee(Agent& agent) override { (*meetings_)[1].join(agent, 1); }
  /// Joins the processes that have come since.
  void join_new(Agent& agent) {
    for (Meeting& meeting : *meetings_) {
      try {
        if (meeting.addresses[1].size != 0) meeting.join(agent, 1);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::peer_died) << error.what();
      }
    }
  }
  /// Calls until the last step. Each call gets its answer, or an error that says why there is none, by its deadline.
  void call_all_the_time(Agent& agent, std::atomic<std::int64_t>& next) {
    constexpr auto kDeadline = 2s,
                   kSlack =
                       12s;  // a machine with much to do, and a connection that is tried for ten seconds
    while (*step_ < 2) {
      const std::int64_t id = next++;
      if (id >= static_cast<std::int64_t>(kMaxRuns)) return;
      Values values = number(id);
      if (id % 8 == 0) values.tensors = tensor_of(1 << 20).tensors;
      const auto begin = std::chrono::steady_clock::now();
      try {
        EXPECT_EQ(number_of(agent.call("callee", "run", std::move(values), kDeadline)), id);
        EXPECT_EQ((*runs_)[static_cast<std::size_t>(id)], 1);
        ++*answers_;
      } catch (const Error& error) {
        EXPECT_TRUE(error.code() == ErrorCode::peer_died || error.code() == ErrorCode::timeout)
            << error.what();
        EXPECT_LE((*runs_)[static_cast<std::size_t>(id)], 1);
        join_new(agent);
      }
      EXPECT_LT(std::chrono::steady_clock::now() - begin, kDeadline + kSlack);
    }
  }
  void disturb(std::mt19937& random) {
    const auto pause = std::chrono::milliseconds(10 + random() % 200);
    const std::int64_t answers = *answers_;
    switch (random() % 5) {
      case 0: cut_for(pause); break;
      case 1: cut_for(2500ms + pause); break;
      case 2: stop_for(pause); break;
      case 3: kill_member(); break;
      default:
        networks_->disturb(50ms, 0.01);
        std::this_thread::sleep_for(pause);
        networks_->undisturb();
    }
    EXPECT_TRUE(eventually([&] { return *answers_ > answers; }, testing::kPatience))
        << "no call was answered after a fault";
    std::this_thread::sleep_for(pause);
  }

  Shared<std::array<Meeting, kMaxCallees>> meetings_;
  Shared<std::atomic<int>> member_;  ///< the pid of the callee
  Shared<std::atomic<std::int64_t>> answers_;
  int kills_ = 0;

 private:
  void cut_for(std::chrono::milliseconds time) {
    networks_->cut();
    std::this_thread::sleep_for(time);
    networks_->mend();
  }
  void stop_for(std::chrono::milliseconds time) {
    signal_member(SIGSTOP);
    std::this_thread::sleep_for(time);
    signal_member(SIGCONT);
  }
  void kill_member() {
    if (++kills_ < kMaxCallees - 1) signal_member(SIGKILL);
  }
  void signal_member(int number) {
    if (const int pid = *member_; pid != 0) ::kill(pid, number);
  }
};

TEST_F(TwoHostsWithFaults, AnswerEachCallOrSayWhyNotAndRunNothingTwice) {
  begin([this](Agent& agent) {
    std::atomic<std::int64_t> next{0};
    EXPECT_EQ(number_of(agent.call("callee", "count")), 1);
    const int descriptors = open_descriptors();
    *step_ = 1;
    {
      std::vector<std::jthread> threads;
      for (int i = 0; i < 3; ++i) threads.emplace_back([&] { call_all_the_time(agent, next); });
    }
    EXPECT_TRUE(eventually([&] {
      try {
        join_new(agent);
        return number_of(agent.call("callee", "count", {}, 2s)) > 0;
      } catch (const Error&) {
        return false;
      }
    })) << "the callee cannot be called once all faults are mended";
    for (std::int64_t id = 0; id < std::min<std::int64_t>(next, kMaxRuns); ++id)
      EXPECT_LE((*runs_)[static_cast<std::size_t>(id)], 1) << "call " << id;
    EXPECT_EQ(agent.calls_under_way(), 0U);
    constexpr int kOfASession = 16;
    EXPECT_TRUE(eventually([&] { return open_descriptors() <= descriptors + kOfASession; }))
        << open_descriptors() << " descriptors, " << descriptors << " at first";
    std::printf("%ld calls, %ld answered\n", static_cast<long>(next), static_cast<long>(*answers_));
  });
  await(1);
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int i = 0; i < fault_rounds() && !HasFailure(); ++i) disturb(random);
  *step_ = 2;
  end();
}

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
