// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "command_process.h"

namespace onecopy::testing {
namespace {

const std::string kFolder = std::string(ONECOPY_SOURCE_DIR) + "/src/cli/completion/";

/// The output of a shell that runs a script.
std::string output_of(const std::string& shell_words, const std::string& script) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/completion";
  write_file(path, script);
  FILE* shell = ::popen(fmt::format("{} '{}' 2>&1", shell_words, path).c_str(), "r");
  EXPECT_NE(shell, nullptr);
  std::string offered(4096, '\0');
  offered.resize(std::fread(offered.data(), 1, offered.size(), shell));
  EXPECT_EQ(::pclose(shell), 0) << offered;
  return offered;
}

/// The words that bash offers for the last of these words, in a line. `functions` stand before the script.
std::string offered_by_bash(const std::vector<std::string>& words, const std::string& functions = "") {
  return output_of("bash", functions + read_file(kFolder + "onecopy.bash") +
                               fmt::format("COMP_WORDS=({})\nCOMP_CWORD={}\n_onecopy\n"
                                           "echo \"${{COMPREPLY[*]}}\"\n",
                                           fmt::join(words, " "), words.size() - 1));
}

bool is_there(const char* shell) {
  return std::system(fmt::format("command -v {} >/dev/null", shell).c_str()) == 0;
}

/// The words that fish offers for the last word of a line, one a line, without their descriptions.
std::string offered_by_fish(const std::string& line,
                            const std::string& functions = "function onecopy; end\n") {
  return output_of("fish --no-config",
                   functions + read_file(kFolder + "onecopy.fish") +
                       fmt::format("complete -C '{}' | string replace -r '\\t.*' ''\ntrue\n", line));
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
  const std::string of_store = run_command({"help", "store"}).out;
  const auto words = found(of_store.substr(of_store.find("Subcommands:"),
                                           of_store.find("Examples:") - of_store.find("Subcommands:")),
                           "\n  ([a-z]+) ");
  ASSERT_TRUE(words.contains("rollback"));
  for (const std::string& word : words) {
    expected.merge(found(run_command({"store", word, "--help"}).out, option_at_a_line));
    EXPECT_EQ(offered_by_bash({"onecopy", "store", word}), word + "\n");
    EXPECT_TRUE(contains(read_file(kFolder + "_onecopy"), "    '" + word + ":")) << word;
    EXPECT_TRUE(contains(read_file(kFolder + "onecopy.fish"), "0 store' -a " + word + " ")) << word;
  }
  const auto in_bash = found(read_file(kFolder + "onecopy.bash"), "[' ](--[a-z-]+)");
  const auto in_zsh = found(read_file(kFolder + "_onecopy"), "['*,](--[a-z-]+)=?[\\[}]");
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
  EXPECT_EQ(offered_by_bash({"onecopy", "s"}), "share store\n");
  EXPECT_EQ(offered_by_bash({"onecopy", "doctor-"}), "\n") << "not for people";
  EXPECT_EQ(offered_by_bash({"onecopy", "ls", "--w"}), "--watch\n");
  EXPECT_EQ(offered_by_bash({"onecopy", "share", "--w"}), "\n");
  EXPECT_EQ(offered_by_bash({"onecopy", "ls", "--format", "j"}), "json\n");
  EXPECT_EQ(offered_by_bash({"onecopy", "help", "sh"}), "share\n");
}

TEST(Completion, OfBashOffersWordsOfTheStoreOnceThenObjectsThenFiles) {
  EXPECT_EQ(offered_by_bash({"onecopy", "store", "ro"}), "rollback\n");
  const std::string object = "onecopy() { echo '    \"name\": \"llama\",'; }\n";
  EXPECT_EQ(offered_by_bash({"onecopy", "store", "rm", "''"}, object), "llama\n");
  EXPECT_EQ(offered_by_bash({"onecopy", "store", "--log-level", "info", "rm", "--keep", "1", "''"}, object),
            "llama\n");
  EXPECT_EQ(offered_by_bash({"onecopy", "store", "put", "ll"}, object), "llama\n");
  EXPECT_EQ(offered_by_bash({"onecopy", "store", "put", "llama", "''"}, object), "\n")
      << "bash completes files where nothing is offered";
  EXPECT_EQ(offered_by_bash({"onecopy", "load", "--device", "c"}), "cpu cuda:0\n");
  EXPECT_EQ(offered_by_bash({"onecopy", "store", "put", "--k"}), "--keep\n");
  EXPECT_EQ(offered_by_bash({"onecopy", "ls", "--format", "=", "j"}), "json\n");
  EXPECT_EQ(offered_by_bash({"onecopy", "ls", "--format", "="}), "table json prometheus\n");
}

TEST(Completion, OffersNamesOfObjectsAsTheyAreAndRunsNothingOfThem) {
  const std::string object = "onecopy() { echo '      \"name\": \"two words $(touch /tmp/x) ;\",'; }\n";
  EXPECT_EQ(offered_by_bash({"onecopy", "store", "rm", "''"}, object),
            "two\\ words\\ \\$\\(touch\\ /tmp/x\\)\\ \\;\n");
  EXPECT_EQ(offered_by_bash({"onecopy", "store", "rm", "'two\\ x'"}, object), "\n");
  EXPECT_NE(offered_by_bash({"onecopy", "store", "rm", "'two\\ w'"}, object), "\n");
}

TEST(Completion, OfFishOffersCommandsOptionsAndObjects) {
  if (!is_there("fish")) GTEST_SKIP() << "wants fish: apt-get install fish";
  EXPECT_EQ(offered_by_fish("onecopy s"), "share\nstore\n");
  EXPECT_EQ(offered_by_fish("onecopy help s"), "share\nstore\n");
  EXPECT_EQ(offered_by_fish("onecopy store s"), "serve\nstatus\nstop\n");
  EXPECT_EQ(offered_by_fish("onecopy store put --k"), "--keep\n");
  EXPECT_EQ(offered_by_fish("onecopy ls --format=j"), "--format=json\n");
  EXPECT_EQ(offered_by_fish("onecopy store ls --f"), "--format\n") << "once";
  EXPECT_EQ(offered_by_fish("onecopy doctor "), "") << "no files";
  const std::string object = "function onecopy; echo '      \"name\": \"two words\",'; end\n";
  EXPECT_EQ(offered_by_fish("onecopy store rm ", object), "two words\n");
}

TEST(Completion, IsAScriptOfItsShell) {
  for (const auto& [shell, file] :
       {std::pair{"bash", "onecopy.bash"}, {"zsh", "_onecopy"}, {"fish", "onecopy.fish"}}) {
    if (!is_there(shell)) continue;
    EXPECT_EQ(std::system(fmt::format("{} -n '{}{}'", shell, kFolder, file).c_str()), 0) << shell;
  }
}

}  // namespace
}  // namespace onecopy::testing
