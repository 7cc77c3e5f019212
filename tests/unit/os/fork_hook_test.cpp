// SPDX-License-Identifier: Apache-2.0
#include "os/fork_hook.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

namespace onecopy {
namespace {

std::string steps_run;  // that have run

// The order differs from the order of their ranks.
const ForkHook runtime_steps{
    ForkRank::runtime, {[] { steps_run += "R"; }, [] { steps_run += "r"; }, [] { steps_run += "r"; }}};
const ForkHook leaf_steps{ForkRank::leaves,
                          {[] { steps_run += "L"; }, [] { steps_run += "l"; }, [] { steps_run += "l"; }}};
const ForkHook queue_steps{ForkRank::queues,
                           {[] { steps_run += "Q"; }, [] { steps_run += "q"; }, [] { steps_run += "q"; }}};
const ForkHook device_steps{ForkRank::devices, {.in_child = [] { steps_run += "d"; }}};

/// The steps that have run in a child, as its parent hears of them by its exit code.
bool child_has_run(const std::string& expected) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(steps_run == expected ? 0 : 1);
  int status = 1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status == 0;
}

TEST(ForkHook, StepsBeforeAForkRunByRankAndThoseAfterItBackwards) {
  steps_run.clear();
  EXPECT_TRUE(child_has_run("QRLldrq"));
  EXPECT_EQ(steps_run, "QRLlrq");
}

TEST(ForkHook, RunsItsStepsAtEveryForkAndInGrandchildren) {
  steps_run.clear();
  EXPECT_TRUE(child_has_run("QRLldrq"));
  EXPECT_TRUE(child_has_run("QRLlrqQRLldrq"));
  steps_run.clear();
  const pid_t child = ::fork();
  if (child == 0) {
    steps_run.clear();
    ::_exit(child_has_run("QRLldrq") ? 0 : 1);
  }
  int status = 1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

/// As a library has that is loaded late.
TEST(ForkHook, AHookThatIsMadeLateHasItsPlaceToo) {
  static std::string late;
  static const ForkHook hook{ForkRank::storages,
                             {.prepare = [] { late += std::to_string(steps_run.size()); }}};
  steps_run.clear();
  EXPECT_TRUE(child_has_run("QRLldrq"));
  EXPECT_EQ(late, "0");
}

}  // namespace
}  // namespace onecopy
