// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "command_process.h"

namespace onecopy::testing {
namespace {

std::string script_for(const char* shell) {
  const Outcome script = run_command({"completion", shell});
  EXPECT_EQ(script.status, 0) << script.err;
  return script.out;
}

/// The words that bash offers for the last of these words, in a line.
std::string offered_by_bash(const std::vector<std::string>& words) {
  const cli::TemporaryDirectory directory;
  const std::string path = directory.path() + "/completion";
  write_file(path, script_for("bash") + fmt::format("COMP_WORDS=({})\nCOMP_CWORD={}\n_onecopy\n"
                                                    "echo \"${{COMPREPLY[*]}}\"\n",
                                                    fmt::join(words, " "), words.size() - 1));
  FILE* shell = ::popen(fmt::format("bash '{}' 2>&1", path).c_str(), "r");
  EXPECT_NE(shell, nullptr);
  std::string offered(4096, '\0');
  offered.resize(std::fread(offered.data(), 1, offered.size(), shell));
  EXPECT_EQ(::pclose(shell), 0) << offered;
  return offered;
}

TEST(Completion, OfBashKnowsTheCommandsAndNotThoseThatAreNotForPeople) {
  EXPECT_EQ(offered_by_bash({"onecopy", "d"}), "demo doctor\n");
  EXPECT_EQ(offered_by_bash({"onecopy", "bench-"}), "\n");
}

TEST(Completion, OfBashKnowsTheOptionsOfEachCommand) {
  EXPECT_EQ(offered_by_bash({"onecopy", "ls", "--w"}), "--watch\n");
  EXPECT_EQ(offered_by_bash({"onecopy", "share", "--w"}), "\n");
  EXPECT_EQ(offered_by_bash({"onecopy", "share", "--log"}), "--log-level\n")
      << "global ones follow commands";
}

TEST(Completion, OfBashKnowsTheWordsThatOptionsTake) {
  EXPECT_EQ(offered_by_bash({"onecopy", "ls", "--format", "j"}), "json\n");
  EXPECT_EQ(offered_by_bash({"onecopy", "ls", "--log-level", "w"}), "warning\n");
  EXPECT_EQ(offered_by_bash({"onecopy", "completion", "z"}), "zsh\n");
  EXPECT_EQ(offered_by_bash({"onecopy", "help", "sh"}), "share\n");
}

TEST(Completion, OfOtherShellsNamesAllCommandsAndTheirWords) {
  for (const char* shell : {"zsh", "fish"}) {
    const std::string script = script_for(shell);
    for (const char* word : {"demo", "share", "open", "doctor", "gc", "bench", "table json", "watch"})
      EXPECT_TRUE(contains(script, word)) << shell;
    EXPECT_EQ(count(script, "bench-peer"), 0u) << shell;
  }
}

TEST(Completion, OfOtherShellsIsAScriptOfThatShell) {
  const cli::TemporaryDirectory directory;
  for (const std::string shell : {"bash", "zsh", "fish"}) {
    if (std::system(("command -v " + shell + " >/dev/null").c_str()) != 0) continue;
    write_file(directory.path() + "/" + shell, script_for(shell.c_str()));
    EXPECT_EQ(std::system((shell + " -n " + directory.path() + "/" + shell).c_str()), 0) << shell;
  }
}

TEST(Completion, OfAShellItDoesNotKnowIsWrongUsage) {
  EXPECT_EQ(run_command({"completion", "cmd.exe"}).status, 2);
  EXPECT_EQ(run_command({"completion"}).status, 2);
}

}  // namespace
}  // namespace onecopy::testing
