// SPDX-License-Identifier: Apache-2.0
// A caller that is stopped before the callee has opened the memory of its call.
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <string_view>

#include "core/point.h"
#include "onecopy/share/share.h"
#include "os/deadline_scope.h"
#include "support/watchdog.h"
#include "unit/rpc/meeting.h"

namespace onecopy::rpc {
namespace {

using namespace std::chrono_literals;
using testing::Child;
using testing::eventually;
using testing::Shared;
using testing::Watchdog;

/// The size in bytes of a tensor that gets a segment of its own, which the callee has not opened yet.
constexpr std::int64_t kOwnSegment = 64 << 20;

std::atomic<bool> may_stop{false};

void stop_after_sending(const char* point) noexcept {
  if (may_stop && std::string_view(point) == "rpc.call.committed") ::raise(SIGSTOP);
}

std::atomic<bool> is_waiting{false}, may_go_on{false};

/// Keeps a thread that waits long for a process that does not answer. A short wait is allowed to a thread that delays
/// others.
void stay_in_wait(const char* point) noexcept {
  constexpr auto kShort = 20ms;
  if (std::string_view(point) != "conversation.silence" || reply_timeout() < kShort) return;
  is_waiting = true;
  EXPECT_TRUE(eventually([] { return may_go_on.load(); }));
}

TEST(ACallWithMemory, OfAStoppedCallerHoldsUpNoCallsOfOthers) {
  Watchdog watchdog;
  is_waiting = may_go_on = false;
  Shared<Meeting> meeting;
  Child stopped([&] {
    Agent agent({.name = "stopped", .number = 2});
    meeting->join(agent, 0);
    EXPECT_EQ(number_of(agent.call("callee", "add one", number(1))), 2);
    point_hook = &stop_after_sending;
    may_stop = true;
    const Tensor tensor = empty(Layout(DType::u8, {kOwnSegment}));
    EXPECT_EQ(agent.call("callee", "echo", {{}, {tensor}}).tensors.at(0).nbytes(), kOwnSegment);
  });
  Agent callee({.name = "callee", .number = 0}), other({.name = "other", .number = 1});
  define_usual(callee);
  other.join(callee.address());
  EXPECT_EQ(number_of(other.call("callee", "add one", number(1))), 2);
  point_hook = &stay_in_wait;
  meeting->publish(0, callee);
  // A call makes the callee look at its lanes: the stopped caller has woken no thread.
  EXPECT_TRUE(eventually([&] {
    EXPECT_EQ(number_of(other.call("callee", "add one", number(1))), 2);
    return is_waiting.load();
  }));
  for (std::int64_t i = 0; i < 100; ++i)
    EXPECT_EQ(number_of(other.call("callee", "add one", number(i), 10s)), i + 1);
  may_go_on = true;
  point_hook = nullptr;
  stopped.signal(SIGCONT);
  EXPECT_EQ(stopped.join(), 0);
}

/// The lane of a caller that dies while it is stopped must end, too.
TEST(ACallWithMemory, OfAStoppedCallerThatIsKilledIsForgotten) {
  Watchdog watchdog;
  Shared<Meeting> meeting;
  Child stopped([&] {
    Agent agent({.name = "stopped", .number = 2});
    meeting->publish(1, agent);
    meeting->join(agent, 0);
    point_hook = &stop_after_sending;
    may_stop = true;
    const Tensor tensor = empty(Layout(DType::u8, {kOwnSegment}));
    agent.call("callee", "echo", {{}, {tensor}});
  });
  Agent callee({.name = "callee", .number = 0}), other({.name = "other", .number = 1});
  define_usual(callee);
  other.join(callee.address());
  meeting->publish(0, callee);
  meeting->join(callee, 1);
  static std::atomic<int> attempts{0};
  attempts = 0;
  point_hook = [](const char* point) noexcept {
    if (std::string_view(point) == "rpc.lane.tried") ++attempts;
  };
  EXPECT_TRUE(eventually([&] {
    EXPECT_EQ(number_of(other.call("callee", "add one", number(1))), 2);
    return attempts.load() >= 3;
  }));
  stopped.kill();
  EXPECT_TRUE(eventually([&] {
    try {
      callee.call("stopped", "echo", {}, 1s);
    } catch (const Error& error) {
      return error.code() == ErrorCode::peer_died;
    }
    return false;
  }));
  point_hook = nullptr;
}

}  // namespace
}  // namespace onecopy::rpc
