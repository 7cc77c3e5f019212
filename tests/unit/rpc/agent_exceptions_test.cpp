// SPDX-License-Identifier: Apache-2.0
// What functions throw, and what happens to functions that are replaced.
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>

#include "onecopy/core/error.h"
#include "support/refusal.h"
#include "support/watchdog.h"
#include "unit/rpc/meeting.h"

namespace onecopy::rpc {
namespace {

using namespace std::chrono_literals;
using testing::expect_refusal;
using testing::Watchdog;

struct Textless : std::runtime_error {
  using std::runtime_error::runtime_error;
  const char* what() const noexcept override { return nullptr; }
};

TEST(AFunction, MayThrowAnyObjectAndTheCallerGetsRemoteError) {
  Watchdog watchdog;
  Agent agent({.name = "one", .number = 1});
  agent.join(agent.address());
  agent.define("int", [](Values&&) -> Values { throw 42; });
  agent.define("textless", [](Values&&) -> Values { throw Textless("not seen"); });
  agent.define_plain("plain", [](const Value::List&) -> Value { throw "a text"; });
  expect_refusal(ErrorCode::remote_error, {"On one", "not a std::exception"},
                 [&] { agent.call("one", "int", {}, 30s); });
  expect_refusal(ErrorCode::remote_error, {"On one", "without a text"},
                 [&] { agent.call("one", "textless", {}, 30s); });
  expect_refusal(ErrorCode::remote_error, {"not a std::exception"},
                 [&] { agent.call_plain("one", "plain", {}, 30s); });
}

TEST(AFunction, ThatIsReplacedIsReleasedOnceNoCallRunsIt) {
  Watchdog watchdog;
  Agent agent({.name = "one", .number = 1});
  agent.join(agent.address());
  auto captured = std::make_shared<int>(7);
  const std::weak_ptr<int> known = captured;
  agent.define("f", [&agent, captured = std::move(captured)](Values&&) {
    agent.define("f", [](Values&&) { return number(8); });
    return number(*captured);  // the function that runs is kept
  });
  EXPECT_EQ(number_of(agent.call("one", "f")), 7);
  EXPECT_EQ(number_of(agent.call("one", "f")), 8);
  EXPECT_TRUE(testing::eventually([&] { return known.expired(); }));
}

}  // namespace
}  // namespace onecopy::rpc
