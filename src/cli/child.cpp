// SPDX-License-Identifier: Apache-2.0
#include "child.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <iostream>
#include <span>
#include <utility>

#include "core/throw_error.h"
#include "os/deadline.h"
#include "os/file.h"

extern char** environ;

namespace onecopy::cli {
namespace {

/// Starts the program with posix_spawn instead of fork, so that no library's fork handler runs in between.
int spawn(const std::vector<std::string>& arguments, const Fd& child_stdin, const Fd& child_stdout) {
  std::vector<char*> argv{const_cast<char*>("onecopy")};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, child_stdin.get(), STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, child_stdout.get(), STDOUT_FILENO);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  // Ctrl-C goes to the parent only, from the child's first instruction on. The other signals that Interrupts blocks are
  // unblocked in the child.
  sigset_t blocked;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGINT);
  ::posix_spawnattr_setsigmask(&attributes, &blocked);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, "/proc/self/exe", &actions, &attributes, argv.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw_errno("cannot start another process of this program", error);
  return pid;
}

/// Returns the reading and the writing end of a pipe.
std::pair<Fd, Fd> make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw_errno("pipe", errno);
  return {Fd(ends[0]), Fd(ends[1])};
}

}  // namespace

Child::Child(const std::vector<std::string>& arguments) {
  std::signal(SIGPIPE,
              SIG_IGN);  // a child that has died raises an error here instead of ending this process
  auto [child_stdin, to] = make_pipe();
  auto [from, child_stdout] = make_pipe();
  pid_ = spawn(arguments, child_stdin, child_stdout);
  to_ = std::move(to);
  from_ = std::move(from);
}

void Child::send(const nlohmann::json& question) {
  const std::string line = question.dump() + "\n";
  try {
    write_all(to_, std::as_bytes(std::span(line)));
  } catch (const Error&) {
    throw_error(ErrorCode::peer_died, "process {} of this program ended unexpectedly", pid_);
  }
}

nlohmann::json Child::ask(const nlohmann::json& question, std::chrono::milliseconds timeout) {
  send(question);
  const auto deadline = Deadline::after(timeout);
  std::size_t end;
  while ((end = pending_.find('\n')) == std::string::npos) {
    if (!deadline.wait_for(from_.get(), POLLIN))
      throw_error(ErrorCode::timeout, "process {} did not answer within {} ms", pid_, timeout.count());
    std::array<char, 4096> buffer;
    const ssize_t got = ::read(from_.get(), buffer.data(), buffer.size());
    if (got == 0) throw_error(ErrorCode::peer_died, "process {} of this program ended unexpectedly", pid_);
    if (got < 0 && errno != EINTR) throw_errno(fmt::format("cannot read from process {}", pid_), errno);
    if (got > 0) pending_.append(buffer.data(), static_cast<std::size_t>(got));
  }
  auto answer = nlohmann::json::parse(pending_.substr(0, end));
  pending_.erase(0, end + 1);
  if (answer.contains("error"))
    throw_error(ErrorCode::protocol, "process {}: {}", pid_, answer["error"].get<std::string>());
  return answer;
}

void Child::kill() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

int serve_questions(nlohmann::json (*answer)(const nlohmann::json& question)) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::signal(SIGINT, SIG_IGN);  // the parent ends this process
  for (std::string line; std::getline(std::cin, line);) {
    nlohmann::json reply;
    try {
      reply = answer(nlohmann::json::parse(line));
    } catch (const std::exception& error) {
      reply = {{"error", error.what()}};
    }
    std::cout << reply.dump() << std::endl;
  }
  return 0;
}

}  // namespace onecopy::cli
