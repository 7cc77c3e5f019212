// SPDX-License-Identifier: Apache-2.0
// Members that reach each other over TLS, on loopback, as members on other hosts do.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "core/point.h"
#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "os/stream_socket.h"
#include "rpc/address.h"
#include "rpc/hosts/endpoint.h"
#include "support/limits.h"
#include "support/refusal.h"
#include "support/watchdog.h"
#include "unit/rpc/meeting.h"
#include "unit/rpc/tls_environment.h"

namespace onecopy::rpc {
namespace {

using namespace std::chrono_literals;
using testing::Child;
using testing::descriptors_for;
using testing::eventually;
using testing::expect_refusal;
using testing::Limit;
using testing::Shared;
using testing::Watchdog;

Tensor counted(std::int64_t n) {
  Tensor tensor = empty(Layout(DType::i64, {n}));
  std::iota(tensor.as<std::int64_t>(), tensor.as<std::int64_t>() + n, 0);
  return tensor;
}

bool is_counted(const Tensor& tensor, std::int64_t n) {
  if (tensor.layout() != Layout(DType::i64, {n})) return false;
  for (std::int64_t i = 0; i < n; ++i)
    if (tensor.as<std::int64_t>()[i] != i) return false;
  return true;
}

PeerInfo peer(const char* name) {
  for (const GroupInfo& group : this_owner().groups)
    for (const PeerInfo& peer : group.peers)
      if (peer.name == name) return peer;
  return {};
}

TEST_F(TlsMembers, CallEachOther) {
  Child callee = serve(meeting_);
  Agent agent({.name = "caller"});
  meeting_->join(agent, 1);
  EXPECT_EQ(number_of(agent.call("callee", "add one", number(41))), 42);
  EXPECT_EQ(text_of(agent.call("callee", "echo", text("hello"))), "hello");
  expect_refusal(ErrorCode::remote_error, {"it is broken"}, [&] { agent.call("callee", "throw"); });
  expect_refusal(ErrorCode::read_only, {"not for you"}, [&] { agent.call("callee", "refuse"); });
  meeting_->step = 1;
  EXPECT_EQ(callee.join(), 0);
}

TEST_F(TlsMembers, AreCalledBackByFunctions) {
  Child callee = serve(meeting_, [&](Agent& agent) {
    agent.define("call back",
                 [&agent](Values&& values) { return agent.call("caller", "add one", std::move(values)); });
  });
  Agent agent({.name = "caller"});
  define_usual(agent);
  meeting_->join(agent, 1);
  EXPECT_EQ(number_of(agent.call("callee", "call back", number(1))), 2);
  meeting_->step = 1;
  EXPECT_EQ(callee.join(), 0);
}

TEST_F(TlsMembers, GetTensorsOfAllSizes) {
  Child callee = serve(meeting_);
  Agent agent({.name = "caller"});
  meeting_->join(agent, 1);
  for (const std::int64_t n : {0, 1, 1000, 5000, 100'000, 2'000'000}) {
    Values values = text("with a tensor");
    values.tensors = {counted(n), counted(3)};
    const Values result = agent.call("callee", "echo", std::move(values));
    ASSERT_EQ(result.tensors.size(), 2U);
    EXPECT_EQ(text_of(result), "with a tensor");
    EXPECT_TRUE(is_counted(result.tensors[0], n)) << n;
    EXPECT_TRUE(is_counted(result.tensors[1], 3)) << n;
  }
  const PeerInfo callee_here = peer("callee");
  EXPECT_EQ(callee_here.state, "open");
  EXPECT_EQ(callee_here.routes, (std::vector<std::pair<std::string, std::uint64_t>>{{"tls", 12}}));
  meeting_->step = 1;
  EXPECT_EQ(callee.join(), 0);
}

/// What is sent is a mixture, and the connection stays.
TEST_F(TlsMembers, GoOnWhenATensorIsWrittenWhileItIsSent) {
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
  GTEST_SKIP() << "the test writes beside a reader, which a thread sanitizer reports";
#endif
#endif
  Child callee = serve(meeting_);
  Agent agent({.name = "caller"});
  meeting_->join(agent, 1);
  const Tensor tensor = counted(500'000);
  std::atomic<bool> is_over{false};
  std::jthread writer([&] {
    for (std::int64_t n = 0; !is_over; ++n) std::fill_n(tensor.as<volatile std::int64_t>(), 500'000, n);
  });
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(agent.call("callee", "echo", {{}, {tensor}}).tensors.at(0).layout(), tensor.layout());
  is_over = true;
  writer.join();
  EXPECT_EQ(number_of(agent.call("callee", "add one", number(1))), 2);
  meeting_->step = 1;
  EXPECT_EQ(callee.join(), 0);
}

TEST_F(TlsMembers, KeepTheStridesOfTensors) {
  Child callee = serve(meeting_);
  Agent agent({.name = "caller"});
  meeting_->join(agent, 1);
  const Layout transposed(DType::i64, {2, 3}, {1, 2});
  Values values{{}, {counted(6).with_layout(transposed)}};
  const Values result = agent.call("callee", "echo", std::move(values));
  EXPECT_EQ(result.tensors.at(0).layout(), transposed);
  EXPECT_EQ(result.tensors.at(0).as<std::int64_t>()[5], 5);
  meeting_->step = 1;
  EXPECT_EQ(callee.join(), 0);
}

TEST_F(TlsMembers, AnswerManyCallsOfManyThreads) {
  Child callee = serve(meeting_);
  Agent agent({.name = "caller"});
  meeting_->join(agent, 1);
  {
    std::vector<std::jthread> threads;
    for (std::int64_t t = 0; t < 4; ++t)
      threads.emplace_back([&agent, t] {
        for (std::int64_t i = 0; i < 300; ++i)
          EXPECT_EQ(number_of(agent.call("callee", "add one", number(1000 * t + i))), 1000 * t + i + 1);
      });
  }
  EXPECT_EQ(agent.calls_under_way(), 0U);
  meeting_->step = 1;
  EXPECT_EQ(callee.join(), 0);
}

TEST_F(TlsMembers, ThatAreKilledEndCalls) {
  Child callee = serve(meeting_, [](Agent& agent) {
    agent.define("wait", [](Values&& values) {
      std::this_thread::sleep_for(1h);
      return std::move(values);
    });
  });
  Agent agent({.name = "caller", .timeout = 0s});
  meeting_->join(agent, 1);
  Future under_way = agent.call_async("callee", "wait");
  agent.call("callee", "echo");
  callee.kill();
  expect_refusal(ErrorCode::peer_died, {"callee"}, [&] { under_way.get(); });
  expect_refusal(ErrorCode::peer_died, {"callee"}, [&] { agent.call("callee", "echo"); });
  EXPECT_EQ(peer("callee").state, "ended");
}

/// All calls used to go to the dead one.
TEST_F(TlsMembers, AreCalledInPlaceOfOneThatDiedBeforeItWasCalled) {
  Shared<Meeting> before;
  Child dead = serve(before);
  Agent agent({.name = "caller"});
  before->join(agent, 1);
  dead.kill();
  Child callee([&] {
    Agent other({.name = "callee", .number = 2});
    define_usual(other);
    meeting_->publish(1, other);
    meeting_->reach(1);
  });
  meeting_->join(agent, 1);
  EXPECT_EQ(number_of(agent.call("callee", "add one", number(1))), 2);
  meeting_->step = 1;
  EXPECT_EQ(callee.join(), 0);
}

TEST_F(TlsMembers, ThatLeaveSaySo) {
  Child callee = serve(meeting_);
  Agent agent({.name = "caller"});
  meeting_->join(agent, 1);
  agent.call("callee", "echo");
  meeting_->step = 1;
  EXPECT_EQ(callee.join(), 0);
  expect_refusal(ErrorCode::peer_died, {"left the group"}, [&] {
    for (;;) agent.call("callee", "echo");
  });
}

TEST_F(TlsMembers, ThatAreStoppedAreSilentAndComeBack) {
  Child callee = serve(meeting_);
  Agent agent({.name = "caller"});
  meeting_->join(agent, 1);
  agent.call("callee", "echo");
  callee.signal(SIGSTOP);
  expect_refusal(ErrorCode::timeout, {"callee"}, [&] { agent.call("callee", "echo", {}, 100ms); });
  EXPECT_TRUE(eventually([&] { return peer("callee").state.starts_with("silent for "); }));
  callee.signal(SIGCONT);
  EXPECT_EQ(number_of(agent.call("callee", "add one", number(1))), 2);
  EXPECT_TRUE(eventually([&] { return peer("callee").state == "open"; }));
  meeting_->step = 1;
  EXPECT_EQ(callee.join(), 0);
}

/// Calls until that fails.
void call_until_death(Agent& agent) {
  try {
    for (;;) agent.call("callee", "add one", number(1));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::peer_died) << error.what();
  }
}

TEST_F(TlsMembers, ThatAreKilledAtAnyMomentEndCallsWithAnAnswerOrAnError) {
  std::mt19937 random(1);  // NOLINT(cert-msc51-cpp): a failure repeats more often so
  for (int round = 0; round < 20; ++round) {
    Shared<Meeting> meeting;
    Child callee = serve(meeting);
    Agent agent({.name = "caller", .timeout = 0s});
    meeting->join(agent, 1);
    std::vector<std::jthread> threads;
    for (int t = 0; t < 3; ++t) threads.emplace_back([&] { call_until_death(agent); });
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    callee.kill();
  }
}

TEST_F(TlsMembers, EndWhileOthersConnect) {
  for (int round = 0; round < 30; ++round) {
    auto ending = std::make_unique<Agent>(AgentOptions{.name = "ending", .number = 1});
    Agent caller({.name = "caller"});
    caller.join(ending->address());
    std::jthread calling([&caller] {
      try {
        caller.call("ending", "nothing");
      } catch (const Error&) {  // it had no such function, or had ended
      }
    });
    ending.reset();
  }
}

/// A process forked from the callee lives on for a while, and does not hide the callee's end.
TEST_F(TlsMembers, ThatAreKilledEndCallsAlthoughTheirChildrenLive) {
  Shared<std::atomic<int>> grandchild;
  Child callee = serve(meeting_, [&](Agent& agent) {
    agent.define("fork", [&](Values&& values) {
      const int pid = ::fork();
      if (pid == 0) ::alarm(30);  // should the test fail
      while (pid == 0) ::pause();
      *grandchild = pid;
      return std::move(values);
    });
    agent.define("wait", [](Values&& values) {
      std::this_thread::sleep_for(1h);
      return std::move(values);
    });
  });
  Agent agent({.name = "caller", .timeout = 0s});
  meeting_->join(agent, 1);
  agent.call("callee", "fork");
  Future under_way = agent.call_async("callee", "wait");
  callee.kill();
  expect_refusal(ErrorCode::peer_died, {"callee"}, [&] { under_way.get(); });
  EXPECT_EQ(::kill(*grandchild, SIGKILL), 0);
}

HostPort endpoint_in(ByteSpan address) {
  return HostPort::parse(Endpoint::parse(Address::from_bytes(address).endpoint).at);
}

HostPort endpoint_of(const Meeting& meeting) {
  const auto& there = meeting.addresses[1];
  return endpoint_in({there.bytes, there.size});
}

TEST_F(TlsMembers, GoOnWhenStrangersConnect) {
  Child callee = serve(meeting_);
  Agent agent({.name = "caller"});
  meeting_->join(agent, 1);
  const HostPort at = endpoint_of(*meeting_);
  StreamSocket silent = StreamSocket::connect(at, 10s), loud = StreamSocket::connect(at, 10s);
  loud.send_all(Bytes(64, std::byte{7}), 10s);
  Bytes answer(4096);
  expect_refusal(ErrorCode::peer_died, {}, [&] { loud.receive_exactly(answer, 10s); });
  EXPECT_EQ(number_of(agent.call("callee", "add one", number(1))), 2);
  meeting_->step = 1;
  EXPECT_EQ(callee.join(), 0);
}

/// The listener takes a limited number of processes that have not proved the key, from one address.
TEST_F(TlsMembers, AreReachedWhileAStrangerFloodsThem) {
  Child callee = serve(meeting_);
  Agent agent({.name = "caller"});
  meeting_->join(agent, 1);
  const HostPort at = endpoint_of(*meeting_);
  std::vector<StreamSocket> flood;
  for (int i = 0; i < 300; ++i) {
    flood.push_back(StreamSocket::connect(at, 10s));
    if (i % 2 == 0)
      flood.back().send_all(Bytes(3, std::byte{22}), 10s);  // as the first bytes of a handshake
  }
  EXPECT_EQ(number_of(agent.call("callee", "add one", number(1))), 2);
  meeting_->step = 1;
  EXPECT_EQ(callee.join(), 0);
}

TEST_F(TlsMembers, WithTooShortAKeyAreToldOfTheCommandThatMakesOne) {
  const Environment too_short("ONECOPY_RPC_KEY", "0123456789012345678901234567890");
  expect_refusal(ErrorCode::invalid_argument, {"31 bytes", "at least 32", "onecopy key"},
                 [] { Agent agent({.name = "caller"}); });
}

TEST_F(TlsMembers, OfAnotherKeyAreRefused) {
  Child callee([&] {
    const Environment other("ONECOPY_RPC_KEY", "another secret, which has 40 characters, too");
    Agent agent({.name = "callee", .number = 1});
    define_usual(agent);
    meeting_->publish(1, agent);
    meeting_->reach(1);
  });
  Agent agent({.name = "caller"});
  expect_refusal(ErrorCode::bad_secret, {"callee has another key", "ONECOPY_RPC_KEY"},
                 [&] { meeting_->join(agent, 1); });
  meeting_->step = 1;
  EXPECT_EQ(callee.join(), 0);
}

/// Both sides learn what differs, since neither connects.
TEST_F(TlsMembers, OfAnotherFabricAreRefusedByBothSides) {
  if (const std::string why = ucx_obstacle("ucx"); !why.empty()) GTEST_SKIP() << why;
  Agent ours({.name = "ours", .number = 1, .transport = "tls"}),
      theirs({.name = "theirs", .number = 2, .transport = "ucx"});
  expect_refusal(ErrorCode::unsupported, {"theirs", "over ucx", "over tls", "ONECOPY_RPC_FABRIC"},
                 [&] { ours.join(theirs.address()); });
  expect_refusal(ErrorCode::unsupported, {"ours", "over ucx", "over tls", "ONECOPY_RPC_FABRIC"},
                 [&] { theirs.join(ours.address()); });
}

TEST_F(TlsMembers, LearnOfAnotherKeyOnBothSides) {
  Agent ours({.name = "ours", .number = 1});
  const Environment other("ONECOPY_RPC_KEY", "another secret, which has 40 characters, too");
  Agent theirs({.name = "theirs", .number = 2});
  expect_refusal(ErrorCode::bad_secret, {"theirs has another key"}, [&] { ours.join(theirs.address()); });
  expect_refusal(ErrorCode::bad_secret, {"ours has another key"}, [&] { theirs.join(ours.address()); });
}

TEST_F(TlsMembers, ReachEachOtherOverIpv6) {
  const Environment listen("ONECOPY_RPC_LISTEN", "[::1]:0");
  Agent callee({.name = "callee", .number = 1});
  define_usual(callee);
  EXPECT_TRUE(endpoint_in(callee.address()).str().starts_with("[::1]:"));
  Agent agent({.name = "caller"});
  agent.join(callee.address());
  EXPECT_EQ(number_of(agent.call("callee", "add one", number(1))), 2);
}

/// 0.0.0.0 names no host: another host would connect to itself.
TEST_F(TlsMembers, ThatListenAtAllAddressesTellOneOfThisHost) {
  if (!first_host_address(true)) GTEST_SKIP() << "wants an address that is not loopback";
  for (const char* const all : {"0.0.0.0:0", "[::]:0"}) {
    const Environment listen("ONECOPY_RPC_LISTEN", all);
    Agent callee({.name = "callee", .number = 1});
    define_usual(callee);
    const HostPort told = endpoint_in(callee.address());
    EXPECT_FALSE(told.is_any());
    EXPECT_FALSE(told.is_loopback());
    Agent agent({.name = "caller"});
    agent.join(callee.address());
    EXPECT_EQ(number_of(agent.call("callee", "add one", number(1))), 2);
  }
}

std::atomic<int> failed_accepts{0};

/// The kernel reports a connection that waits for a descriptor once.
TEST_F(TlsMembers, TakeAConnectionOnceThereIsADescriptorForIt) {
  Shared<std::atomic<bool>> is_short;
  Child callee([&] {
    Agent agent({.name = "callee", .number = 1});
    define_usual(agent);
    meeting_->publish(1, agent);
    point_hook = [](const char* point) noexcept {
      if (std::string_view(point) == "rpc.accept.failed") ++failed_accepts;
    };
    Limit limit(RLIMIT_NOFILE, descriptors_for(0));
    *is_short = true;
    EXPECT_TRUE(eventually([&] { return failed_accepts != 0; }));
    limit.lift();
    meeting_->reach(1);
  });
  Agent agent({.name = "caller"});
  meeting_->join(agent, 1);
  EXPECT_TRUE(eventually([&] { return is_short->load(); }));
  StreamSocket waits = StreamSocket::connect(endpoint_of(*meeting_), 10s);
  waits.send_all(Bytes(64, std::byte{7}), 10s);
  Bytes answer(4096);
  expect_refusal(ErrorCode::peer_died, {}, [&] { waits.receive_exactly(answer, 30s); });
  meeting_->step = 1;
  EXPECT_EQ(callee.join(), 0);
}

TEST_F(TlsMembers, WithoutAKeyListenOnLoopbackAlone) {
  ::unsetenv("ONECOPY_RPC_KEY");
  const Environment beyond("ONECOPY_RPC_LISTEN", "0.0.0.0:0");
  expect_refusal(ErrorCode::invalid_argument, {"set ONECOPY_RPC_KEY"},
                 [] { Agent agent({.name = "caller"}); });
}

TEST_F(TlsMembers, ThatListenNowhereSayHowToBeReached) {
  Child callee([&] {
    ::unsetenv("ONECOPY_RPC_KEY");
    ::unsetenv("ONECOPY_RPC_LINK");
    ::unsetenv("ONECOPY_RPC_LISTEN");
    Agent agent({.name = "callee", .number = 1});
    meeting_->publish(1, agent);
    meeting_->reach(1);
  });
  Agent agent({.name = "caller"});
  EXPECT_TRUE(eventually([&] { return meeting_->addresses[1].size != 0; }));
  Address address = Address::from_bytes({meeting_->addresses[1].bytes, meeting_->addresses[1].size});
  ++address.host;
  expect_refusal(ErrorCode::unsupported, {"set ONECOPY_RPC_KEY"}, [&] { agent.join(address.to_bytes()); });
  meeting_->step = 1;
  EXPECT_EQ(callee.join(), 0);
}

}  // namespace
}  // namespace onecopy::rpc
