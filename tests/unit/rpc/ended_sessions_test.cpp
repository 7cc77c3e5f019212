// SPDX-License-Identifier: Apache-2.0
// Members whose connections end while both processes live.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <string>
#include <string_view>

#include "core/point.h"
#include "onecopy/core/error.h"
#include "unit/rpc/meeting.h"
#include "unit/rpc/tls_environment.h"

namespace onecopy::rpc {
namespace {

using namespace std::chrono_literals;
using testing::Child;
using testing::eventually;

/// Ends all TCP connections of this process, as a network that is cut for too long does.
void end_connections() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    sockaddr_in peer{};
    socklen_t size = sizeof peer;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) == 0 && peer.sin_family == AF_INET)
      ::shutdown(fd, SHUT_RDWR);
  }
}

/// Members that reach each other over the transport of that name.
class EndedSessions : public TlsMembers, public ::testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    if (const std::string why = ucx_obstacle(GetParam()); !why.empty()) GTEST_SKIP() << why;
  }
  Environment fabric_{"ONECOPY_RPC_FABRIC", GetParam()};
};

/// The state of the hook below, which has none of its own. It outlives the threads of the agent.
struct NextCall {
  Agent* caller = nullptr;
  std::future<std::int64_t> result{};
  std::atomic<bool> is_begun{false}, is_sent{false}, is_ready{false};
};
std::atomic<NextCall*> next_call{nullptr};  // a point reads its hook without an order

/// Makes a call when the end of the callee's session is noticed, and waits until the call is sent or has failed.
void call_once_noticed(const char* name) noexcept {
  NextCall* const to = next_call.load();
  if (!to) return;
  NextCall& next = *to;
  if (std::string_view(name) == "rpc.call.committed") next.is_sent = true;
  if (std::string_view(name) != "rpc.death.noticed" || next.is_begun.exchange(true)) return;
  next.result = std::async(std::launch::async,
                           [&] { return number_of(next.caller->call("callee", "add one", number(1))); });
  EXPECT_TRUE(
      eventually([&] { return next.is_sent || next.result.wait_for(0s) == std::future_status::ready; }));
  next.is_ready = true;
}

/// The call used to fail until all calls of the ended session had failed.
TEST_P(EndedSessions, AreFollowedByTheNextOneAtOnce) {
  Child callee = serve(meeting_);
  NextCall next;
  Agent agent({.name = "caller"});
  meeting_->join(agent, 1);
  EXPECT_EQ(number_of(agent.call("callee", "add one", number(1))), 2);
  next.caller = &agent;
  next_call = &next;
  point_hook = &call_once_noticed;
  end_connections();
  EXPECT_TRUE(eventually([&] { return next.is_ready.load(); }));
  point_hook = nullptr;
  EXPECT_EQ(next.result.get(), 2);
  meeting_->step = 1;
  EXPECT_EQ(callee.join(), 0);
}

INSTANTIATE_TEST_SUITE_P(Transports, EndedSessions, ::testing::Values("tls", "ucx"),
                         [](const auto& transport) { return transport.param; });

}  // namespace
}  // namespace onecopy::rpc
