// SPDX-License-Identifier: Apache-2.0
#include "command_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>

#include "support/eventually.h"

extern char** environ;

namespace onecopy::testing {
namespace {

std::vector<std::string> environment_with(const CommandProcess::Environment& changes) {
  std::vector<std::string> entries;
  for (const auto& [name, value] : changes) entries.push_back(name + "=" + value);
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const auto same_name = [&](const auto& change) { return text.starts_with(change.first + "="); };
    if (std::none_of(changes.begin(), changes.end(), same_name)) entries.push_back(text);
  }
  return entries;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& string : strings) result.push_back(string.data());
  result.push_back(nullptr);
  return result;
}

}  // namespace

CommandProcess::CommandProcess(const std::vector<std::string>& arguments, const std::string& standard_input,
                               const Environment& environment, const std::string& standard_output) {
  const std::string base = directory_.path();
  const std::string out = standard_output.empty() ? base + "/out" : standard_output;
  write_file(base + "/in", standard_input);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 0, (base + "/in").c_str(), O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&actions, 1, out.c_str(), O_WRONLY | O_CREAT, 0600);
  ::posix_spawn_file_actions_addopen(&actions, 2, (base + "/err").c_str(), O_WRONLY | O_CREAT, 0600);
  std::vector<std::string> words{"onecopy"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> entries = environment_with(environment);
  const int error = ::posix_spawn(&pid_, ONECOPY_COMMAND, &actions, nullptr, pointers(words).data(),
                                  pointers(entries).data());
  ::posix_spawn_file_actions_destroy(&actions);
  EXPECT_EQ(error, 0) << "cannot start " << ONECOPY_COMMAND << ": " << std::strerror(error);
  if (error != 0) pid_ = -1;
}

CommandProcess::~CommandProcess() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void CommandProcess::signal(int number) const noexcept { ::kill(pid_, number); }

int CommandProcess::wait() {
  int status = 0;
  const bool ended =
      eventually([&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; }, std::chrono::seconds(100));
  EXPECT_TRUE(ended) << "the command still runs; stderr: " << err();
  if (!ended) return -1000;
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

std::string CommandProcess::out() const { return read_file(directory_.path() + "/out"); }
std::string CommandProcess::err() const { return read_file(directory_.path() + "/err"); }

std::string CommandProcess::first_line() const {
  EXPECT_TRUE(eventually([&] { return out().find('\n') != std::string::npos; })) << err();
  const std::string text = out();
  return text.substr(0, text.find('\n'));
}

bool CommandProcess::says(const std::string& text) const {
  return eventually([&] { return err().find(text) != std::string::npos; });
}

Outcome run_command(const std::vector<std::string>& arguments, const std::string& standard_input,
                    const CommandProcess::Environment& environment) {
  CommandProcess process(arguments, standard_input, environment);
  const int status = process.wait();
  return {status, process.out(), process.err()};
}

::testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "no \"" << part << "\" in: " << text;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string read_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::string safetensors_bytes(const std::string& json, const std::string& data) {
  const std::uint64_t size = json.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &size, sizeof size);
  return bytes + json + data;
}

}  // namespace onecopy::testing
