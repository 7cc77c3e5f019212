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

/// The words that bash offers for the last of these words, in a line.
std::string offered_by_bash(const std::vector<std::string>& words) {
  return output_of("bash", "onecopy() { " ONECOPY_COMMAND " \"$@\"; }\n" +
                               read_file(kFolder + "onecopy.bash") +
                               fmt::format("COMP_WORDS=({})\nCOMP_CWORD={}\n_onecopy\n"
                                           "echo \"${{COMPREPLY[*]}}\"\n",
                                           fmt::join(words, " "), words.size() - 1));
}

bool is_there(const char* shell) {
  return std::system(fmt::format("command -v {} >/dev/null", shell).c_str()) == 0;
}

/// The words that fish offers for the last word of a line, one a line, without their descriptions.
std::string offered_by_fish(const std::string& line) {
  return output_of("fish --no-config",
                   "function onecopy; " ONECOPY_COMMAND " $argv; end\n" +
                       read_file(kFolder + "onecopy.fish") +
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

/// The words that may follow, without their descriptions.
std::set<std::string> offered(std::vector<std::string> words) {
  words.insert(words.begin(), "complete");
  return found(run_command(words).out, "([^\t\n]*)\t");
}

TEST(Completion, OffersTheCommandsAndOptionsThatTheHelpNames) {
  const auto named_after = [](const std::string& help) {
    return found(help.substr(std::min(help.find("Subcommands:"), help.size()),
                             help.find("Example") - help.find("Subcommands:")),
                 "\n  ([a-z]+) ");
  };
  std::vector<std::vector<std::string>> left{{}};
  std::size_t commands = 0;
  while (!left.empty()) {
    const std::vector<std::string> words = left.back();
    left.pop_back();
    const auto with = [&](const std::string& word) {
      std::vector<std::string> more = words;
      more.push_back(word);
      return more;
    };
    const std::string help = run_command(with("--help")).out;
    const std::set<std::string> options = offered(with("-"));
    for (const std::string& option : found(help, "\n  (?:-\\w,)?(--[a-z-]+)"))
      EXPECT_TRUE(options.contains(option)) << option << " of " << fmt::format("{}", fmt::join(words, " "));
    if (!contains(help, "Subcommands:")) continue;
    EXPECT_EQ(offered(with("")), named_after(help));
    for (const std::string& name : named_after(help))
      if (name != "help") left.push_back(with(name));  // help COMMAND has the options of COMMAND
    commands += named_after(help).size();
  }
  EXPECT_GT(commands, 20U);
}

TEST(Completion, OfBashOffersTheWordsThatOptionsTake) {
  EXPECT_EQ(offered_by_bash({"onecopy", "s"}), "share store\n");
  EXPECT_EQ(offered_by_bash({"onecopy", "doctor-"}), "\n") << "not for people";
  EXPECT_EQ(offered_by_bash({"onecopy", "ls", "--w"}), "--watch\n");
  EXPECT_EQ(offered_by_bash({"onecopy", "share", "--w"}), "\n");
  EXPECT_EQ(offered_by_bash({"onecopy", "ls", "--format", "j"}), "json\n");
  EXPECT_EQ(offered_by_bash({"onecopy", "help", "sh"}), "share\n");
  EXPECT_EQ(offered_by_bash({"onecopy", "load", "--device", "c"}), "cpu cuda:0\n");
  EXPECT_EQ(offered_by_bash({"onecopy", "ls", "--format", "=", "j"}), "json\n");
  EXPECT_EQ(offered_by_bash({"onecopy", "ls", "--format", "="}), "json prometheus table\n");
}

/// A store of the test's own with one object.
class CompletionOfObjects : public ::testing::Test {
 protected:
  void SetUp() override { ::setenv("ONECOPY_STORE_DIR", directory_.path().c_str(), 1); }
  void TearDown() override {
    run_command({"store", "stop"});
    ::unsetenv("ONECOPY_STORE_DIR");
  }
  void put(const std::string& name) const {
    const std::string file = directory_.path() + "/w.safetensors";
    write_file(file, safetensors_bytes(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x"));
    const Outcome done = run_command({"store", "put", name, file});
    ASSERT_EQ(done.status, 0) << done.err;
  }

 private:
  const TemporaryDirectory directory_;
};

TEST_F(CompletionOfObjects, OfBashOffersWordsOfTheStoreOnceThenObjectsThenFiles) {
  put("llama");
  EXPECT_EQ(offered_by_bash({"onecopy", "store", "ro"}), "rollback\n");
  EXPECT_EQ(offered_by_bash({"onecopy", "store", "rm", "''"}), "llama\n");
  EXPECT_EQ(offered_by_bash({"onecopy", "store", "--log-level", "info", "rm", "--keep", "1", "''"}),
            "llama\n");
  EXPECT_EQ(offered_by_bash({"onecopy", "store", "put", "ll"}), "llama\n");
  EXPECT_EQ(offered_by_bash({"onecopy", "store", "put", "llama", "''"}), "\n")
      << "bash completes files where nothing is offered";
  EXPECT_EQ(run_command({"complete", "store", "put", "llama", ""}).out, ":files\n");
  EXPECT_EQ(run_command({"complete", "store", "rm", "llama", ""}).out, "");
  EXPECT_EQ(offered_by_bash({"onecopy", "store", "put", "--k"}), "--keep\n");
}

TEST_F(CompletionOfObjects, AreOfferedAsTheyAreAndNothingOfThemRuns) {
  put("two words $(touch /tmp/x) ;");
  EXPECT_EQ(offered_by_bash({"onecopy", "store", "rm", "''"}),
            "two\\ words\\ \\$\\(touch\\ /tmp/x\\)\\ \\;\n");
  EXPECT_EQ(offered_by_bash({"onecopy", "store", "rm", "'two\\ x'"}), "\n");
  EXPECT_NE(offered_by_bash({"onecopy", "store", "rm", "'two\\ w'"}), "\n");
  if (!is_there("fish")) return;
  EXPECT_EQ(offered_by_fish("onecopy store rm "), "two words $(touch /tmp/x) ;\n");
}

TEST_F(CompletionOfObjects, NoKeeperStartsForThem) {
  EXPECT_EQ(run_command({"complete", "store", "rm", ""}).out, "");
  EXPECT_EQ(run_command({"store", "status"}).status, 1);
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
  const TemporaryDirectory directory;
  write_file(directory.path() + "/model", "");
  EXPECT_EQ(offered_by_fish("onecopy share " + directory.path() + "/m"), directory.path() + "/model\n");
  EXPECT_EQ(offered_by_fish("onecopy open --out=" + directory.path() + "/m"),
            "--out=" + directory.path() + "/model\n");
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
