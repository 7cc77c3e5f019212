// SPDX-License-Identifier: Apache-2.0
#include "cli/child.h"

#include <csignal>
#include <cstdint>
#include <fstream>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace onecopy::cli
