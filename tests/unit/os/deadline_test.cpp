// SPDX-License-Identifier: Apache-2.0
#include "os/deadline.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>

#include <limits>

#include "expect_error.h"
#include "onecopy/core/error.h"
#include "os/process.h"
#include "os/unix_socket.h"
#include "support/child.h"

namespace onecopy {
namespace {

using namespace std::chrono_literals;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Deadline, OfZeroAndLessTriesOnce) {
  EXPECT_EQ(Deadline::after(0ns), kNow);
  EXPECT_EQ(Deadline::after(-1h), kNow);
  EXPECT_EQ(Deadline::after_seconds(0), kNow);
  EXPECT_EQ(Deadline::after_seconds(-0.5), kNow);
  EXPECT_EQ(Deadline::after_seconds(-kInfinity), kNow);
}

TEST(Deadline, OfInfinityAndOfMoreThanTheClockHoldsIsNever) {
  EXPECT_EQ(Deadline::after_seconds(kInfinity), kForever);
  EXPECT_EQ(Deadline::after_seconds(1e300), kForever);
  EXPECT_EQ(Deadline::after(std::chrono::nanoseconds::max()), kForever);
  EXPECT_EQ(Deadline::after(std::chrono::hours::max()), kForever);
}

TEST(Deadline, OfNotANumberIsRefused) {
  EXPECT_THROW(Deadline::after_seconds(std::numeric_limits<double>::quiet_NaN()), Error);
}

TEST(Deadline, OfSecondsKeepsTheirFractions) {
  const auto before = std::chrono::steady_clock::now();
  const Deadline deadline = Deadline::after_seconds(2.25);
  EXPECT_GE(deadline.at(), before + 2250ms);
  EXPECT_LE(deadline.at(), std::chrono::steady_clock::now() + 2250ms);
}

/// poll(2) refuses to wait for more descriptors than the limit, also for open ones, and calls that an invalid argument.
TEST(AWait, BelowTheLimitOfDescriptorsSaysThatTheLimitIsLow) {
  testing::JoinedChild child([] {
    const auto [socket, other] = UnixSocket::pair();
    const Fd pidfd = open_pidfd(current_pid());
    const rlimit none{0, 0};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
    const Deadline deadline = Deadline::after(20s);
    const auto text = expect_error(ErrorCode::out_of_descriptors,
                                   [&, fd = socket.fd()] { deadline.wait_for(fd, POLLIN); });
    EXPECT_TRUE(contains(text, "RLIMIT_NOFILE")) << text;
    expect_error(ErrorCode::out_of_descriptors, [&] { has_exited(pidfd); });
  });
}

}  // namespace
}  // namespace onecopy
