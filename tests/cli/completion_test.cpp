// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "command_process.h"

namespace onecopy::testing {
namespace {

const std::string kFolder = std::string(ONECOPY_SOURCE_DIR) + "/src/cli/completion/";

/// The words that bash offers for the last of these words, in a line. `functions` stand before the script.
std::string offered_by_bash(const std::vector<std::string>& words, const std::string& functions = "") {
  const cli::TemporaryDirectory directory;
  const std::string path = directory.path() + "/completion";
  write_file(path, functions + read_file(kFolder + "onecopy.bash") +
                       fmt::format("COMP_WORDS=({})\nCOMP_CWORD={}\n_onecopy\n"
                                   "echo \"${{COMPREPLY[*]}}\"\n",
                                   fmt::join(words, " "), words.size() - 1));
  FILE* shell = ::popen(fmt::format("bash '{}' 2>&1", path).c_str(), "r");
  EXPECT_NE(shell, nullptr);
  std::string offered(4096, '\0');
  offered.resize(std::fread(offered.data(), 1, offered.size(), shell));
  EXPECT_EQ(::pclose(shell), 0) << offered;
  return offered;
}

/// Returns all matches of the first group of `pattern`.
std::set<std::string> found(const std::string& text, const char* pattern) {
  const std::regex regex(pattern);
  std::set<std::string> words;
  for (std::sregex_iterator at(text.begin(), text.end(), regex), end; at != end; ++at)
    words.insert((*at)[1]);
  return words;
}

TEST(Completion, KnowsTheCommandsAndOptionsThatTheHelpNames) {
  const std::string help = run_command({"--help"}).out;
  const std::size_t list = help.find("Subcommands:");
  const auto commands = found(help.substr(list, help.find("Examples:") - list), "\n  ([a-z]+) ");
  ASSERT_TRUE(commands.contains("share"));
  const char* const option_at_a_line = "\n  (?:-\\w,)?(--[a-z-]+)";
  std::set<std::string> expected = found(help, option_at_a_line);
  for (const std::string& command : commands)
    expected.merge(found(run_command({"help", command}).out, option_at_a_line));
  const auto in_bash = found(read_file(kFolder + "onecopy.bash"), "[' ](--[a-z-]+)");
  const auto in_zsh = found(read_file(kFolder + "_onecopy"), "'(--[a-z-]+)\\[");
  EXPECT_EQ(in_bash, expected);
  EXPECT_EQ(in_zsh, expected);
  const std::string fish = read_file(kFolder + "onecopy.fish");
  for (const std::string& option : expected)
    EXPECT_TRUE(contains(fish, "-l " + option.substr(2) + " ")) << option;
  for (const std::string& command : commands) {
    EXPECT_EQ(offered_by_bash({"onecopy", command}), command + "\n");
    EXPECT_TRUE(contains(read_file(kFolder + "_onecopy"), "'" + command + ":")) << command;
    EXPECT_TRUE(contains(fish, "-a " + command + " ")) << command;
  }
}

TEST(Completion, OfBashOffersTheWordsThatOptionsTake) {
  EXPECT_EQ(offered_by_bash({"onecopy", "d"}), "demo doctor\n");
  EXPECT_EQ(offered_by_bash({"onecopy", "bench-"}), "\n") << "not for people";
  EXPECT_EQ(offered_by_bash({"onecopy", "ls", "--w"}), "--watch\n");
  EXPECT_EQ(offered_by_bash({"onecopy", "share", "--w"}), "\n");
  EXPECT_EQ(offered_by_bash({"onecopy", "ls", "--format", "j"}), "json\n");
  EXPECT_EQ(offered_by_bash({"onecopy", "help", "sh"}), "share\n");
}

TEST(Completion, OfBashOffersWordsOfTheStoreOnceThenObjectsThenFiles) {
  EXPECT_EQ(offered_by_bash({"onecopy", "store", "ro"}), "rollback\n");
  const std::string object = "onecopy() { echo '    \"name\": \"llama\",'; }\n";
  EXPECT_EQ(offered_by_bash({"onecopy", "store", "rm", "''"}, object), "llama\n");
  EXPECT_EQ(offered_by_bash({"onecopy", "store", "put", "ll"}, object), "llama\n");
  EXPECT_EQ(offered_by_bash({"onecopy", "store", "put", "llama", "''"}, object), "\n")
      << "bash completes files where nothing is offered";
  EXPECT_EQ(offered_by_bash({"onecopy", "load", "--device", "c"}), "cpu cuda:0\n");
}

TEST(Completion, IsAScriptOfItsShell) {
  for (const auto& [shell, file] :
       {std::pair{"bash", "onecopy.bash"}, {"zsh", "_onecopy"}, {"fish", "onecopy.fish"}}) {
    if (std::system(fmt::format("command -v {} >/dev/null", shell).c_str()) != 0) continue;
    EXPECT_EQ(std::system(fmt::format("{} -n '{}{}'", shell, kFolder, file).c_str()), 0) << shell;
  }
}

}  // namespace
}  // namespace onecopy::testing
