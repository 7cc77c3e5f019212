// SPDX-License-Identifier: Apache-2.0
#include "cli/child.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "onecopy/core/error.h"
#include "support/refusal.h"
#include "support/watchdog.h"

namespace onecopy::cli {
namespace {

/// Returns the mask of signals that a process blocks, or 0 if there is no process with this PID.
std::uint64_t blocked_by(int pid) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("SigBlk:")) return std::stoull(line.substr(7), nullptr, 16);
  return 0;
}

/// A terminal sends Ctrl-C to all processes; a child that ended of it before it is ready would be taken for broken.
TEST(ChildOfTheCommand, LeavesCtrlCToTheParentFromTheStart) {
  const Child child(
      {"--gtest_filter=None"});  // this program again; it stays a zombie until the destructor reaps it
  EXPECT_NE(blocked_by(child.pid()) & 1u << (SIGINT - 1), 0u);
}

/// What the child of the next test runs. In a run of all tests stdin is empty.
TEST(ChildOfTheCommand, AnswersNothingAndEndsWithItsStdin) {
  if (::isatty(STDIN_FILENO) != 0) GTEST_SKIP() << "wants a stdin that is not a terminal";
  for (std::string line; std::getline(std::cin, line);) {
  }
}

TEST(ChildOfTheCommand, IsNotWaitedForWhereTheKernelRefusesToWait) {
  const testing::Watchdog watchdog;
  Child child({"--gtest_filter=ChildOfTheCommand.AnswersNothingAndEndsWithItsStdin"});
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  testing::expect_refusal(ErrorCode::out_of_descriptors, {"cannot wait"}, [&] {
    child.ask({{"question", 1}}, std::chrono::seconds(60));
  });
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

}  // namespace
}  // namespace onecopy::cli
