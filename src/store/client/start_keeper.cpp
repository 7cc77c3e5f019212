// SPDX-License-Identifier: Apache-2.0
#include "store/client/start_keeper.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <vector>

#include "onecopy/core/error.h"
#include "os/fd.h"

namespace onecopy::store {
namespace {

/// The settings to start a command whose output goes to a given file and whose signals have their defaults.
class SpawnSettings {
 public:
  explicit SpawnSettings(int output) {
    ::posix_spawn_file_actions_init(&actions_);
    ::posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", 0, 0);
    ::posix_spawn_file_actions_adddup2(&actions_, output, STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions_, output, STDERR_FILENO);
    ::posix_spawnattr_init(&attributes_);
    sigset_t signals;
    ::sigemptyset(&signals);
    ::posix_spawnattr_setsigmask(&attributes_, &signals);
    ::sigfillset(&signals);
    ::posix_spawnattr_setsigdefault(&attributes_, &signals);
    ::posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;
  ~SpawnSettings() {
    ::posix_spawn_file_actions_destroy(&actions_);
    ::posix_spawnattr_destroy(&attributes_);
  }
  const posix_spawn_file_actions_t* actions() const noexcept { return &actions_; }
  const posix_spawnattr_t* attributes() const noexcept { return &attributes_; }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

/// Waits for the process and returns its exit status; 0 if the program ignores SIGCHLD and so cannot learn the status.
int wait_for(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0)
    if (errno != EINTR) return 0;
  return status;
}

std::string text_in(int file) {
  std::string text(4096, '\0');
  const ssize_t read = ::pread(file, text.data(), text.size(), 0);
  text.resize(read > 0 ? static_cast<std::size_t>(read) : 0);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\0')) text.pop_back();
  return text;
}

Fd make_output() {
  const int fd = ::memfd_create("onecopy-store-start", MFD_CLOEXEC);
  if (fd < 0) throw_errno("cannot make a file for the output of a command", errno);
  return Fd(fd);
}

}  // namespace

void start_keeper(const std::string& command) {
  const Fd output = make_output();
  const SpawnSettings settings(output.get());
  std::vector<std::string> words{"onecopy", "store", "serve", "--background"};
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t pid = 0;
  const int error = ::posix_spawnp(&pid, command.c_str(), settings.actions(), settings.attributes(),
                                   arguments.data(), environ);
  if (error != 0)
    throw Error(
        ErrorCode::unsupported,
        fmt::format("the store has no keeper, and the command \"{}\" cannot be run to start one ({}); run "
                    "`onecopy store serve`",
                    command, std::strerror(error)),
        error, ErrorDomain::posix);
  if (wait_for(pid) != 0)
    throw Error(ErrorCode::unsupported,
                fmt::format("the store's keeper cannot be started: {}", text_in(output.get())));
}

}  // namespace onecopy::store
