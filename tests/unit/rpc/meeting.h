// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <functional>
#include <string>
#include <string_view>

#include "onecopy/core/error.h"
#include "onecopy/rpc/agent.h"
#include "support/child.h"
#include "support/watchdog.h"

/// Agents in several processes of one test.
namespace onecopy::rpc {

inline Values text(std::string_view s) {
  const auto* begin = reinterpret_cast<const std::byte*>(s.data());
  return {Bytes(begin, begin + s.size()), {}};
}
inline std::string text_of(const Values& values) {
  return {reinterpret_cast<const char*>(values.data.data()), values.data.size()};
}
inline Values number(std::int64_t n) {
  Values values{Bytes(sizeof n), {}};
  write_value(values.data.data(), n);
  return values;
}
inline std::int64_t number_of(const Values& values) { return load<std::int64_t>(values.data.data()); }

/// How two processes of a test find each other, and when each may end.
struct Meeting {
  std::atomic<int> step{0};
  struct {
    std::atomic<std::size_t> size{0};
    std::byte bytes[1024];
  } addresses[3];

  void publish(int i, const Agent& agent) {
    const Bytes bytes = agent.address();
    ASSERT_LE(bytes.size(), sizeof addresses[i].bytes);
    std::copy(bytes.begin(), bytes.end(), addresses[i].bytes);
    addresses[i].size = bytes.size();
  }
  std::string join(Agent& agent, int i) {
    EXPECT_TRUE(testing::eventually([&] { return addresses[i].size != 0; }));
    return agent.join({addresses[i].bytes, addresses[i].size});
  }
  void reach(int at) {
    EXPECT_TRUE(testing::eventually([&] { return step >= at; }, 2 * testing::kPatience))
        << "waiting for step " << at;
  }
};

inline void define_usual(Agent& agent) {
  agent.define("echo", [](Values&& values) { return std::move(values); });
  agent.define("add one", [](Values&& values) { return number(number_of(values) + 1); });
  agent.define("throw", [](Values&&) -> Values { throw std::runtime_error("it is broken"); });
  agent.define("refuse", [](Values&&) -> Values { throw Error(ErrorCode::read_only, "not for you"); });
}

/// Starts a process with an agent "callee", which runs until step 1.
inline testing::Child serve(
    testing::Shared<Meeting>& meeting, std::function<void(Agent&)> more = [](Agent&) {}) {
  return testing::Child([&meeting, more = std::move(more)] {
    Agent agent({.name = "callee", .number = 1});
    define_usual(agent);
    agent.define("stay", [&](Values&& values) {
      meeting->reach(1);
      return std::move(values);
    });
    more(agent);
    meeting->publish(1, agent);
    meeting->reach(1);
    agent.shutdown();
  });
}

/// An agent "caller" of this process, and a callee that it can call. The callee must end without an error, unless the
/// test kills it.
class AgentWithCallee : public ::testing::Test {
 protected:
  AgentWithCallee() { EXPECT_EQ(meeting_->join(agent_, 1), "callee"); }
  ~AgentWithCallee() override {
    meeting_->step = 1;
    EXPECT_EQ(callee_.join(), exit_of_callee_);
  }
  void kill_callee() {
    exit_of_callee_ = -SIGKILL;
    callee_.signal(SIGKILL);
  }

  testing::Watchdog watchdog_;
  testing::Shared<Meeting> meeting_;
  testing::Child callee_ = serve(meeting_);
  Agent agent_{{.name = "caller"}};
  int exit_of_callee_ = 0;
};

}  // namespace onecopy::rpc
