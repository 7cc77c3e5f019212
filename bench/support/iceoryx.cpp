// SPDX-License-Identifier: Apache-2.0
#include "support/iceoryx.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "onecopy/core/error.h"

extern char** environ;

namespace onecopy::bench {
namespace {

std::string program() {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "onecopy_bench_iceoryx").string();
}

}  // namespace

Iceoryx::Iceoryx() {
  if (!std::filesystem::exists(program())) {
    why_ = "iceoryx was not there when this was built (packages libiceoryx-posh-dev and iceoryx)";
    return;
  }
  try {
    start_daemon();
    follower_ = std::make_unique<Peer>("follower", program());
    leader_ = std::make_unique<Peer>("leader", program());
    follower_->hear();
    leader_->hear();
  } catch (const Error& e) {
    why_ = std::string("iceoryx does not run here: ") + e.what();
    leader_.reset();
    follower_.reset();
    stop_daemon();
  }
}

Iceoryx::~Iceoryx() {
  leader_.reset();
  follower_.reset();
  stop_daemon();
}

double Iceoryx::round(const std::string& kind, int count) {
  const std::string message = fmt::format("{} {}", kind, count);
  follower_->say(message);
  leader_->say(message);
  follower_->hear();
  return leader_->hear_number();
}

void Iceoryx::start_daemon() {
  std::array<char*, 6> argv{const_cast<char*>("iox-roudi"), const_cast<char*>("-l"),
                            const_cast<char*>("error"),     const_cast<char*>("-m"),
                            const_cast<char*>("off"),       nullptr};
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  const int error = ::posix_spawnp(&daemon_, "iox-roudi", &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw_errno("cannot start iox-roudi (package iceoryx)", error);
}

void Iceoryx::stop_daemon() noexcept {
  if (daemon_ < 0) return;
  ::kill(daemon_, SIGTERM);
  int status = 0;
  for (int ms = 0; ms < 5000; ++ms) {
    if (::waitpid(daemon_, &status, WNOHANG) != 0) return;
    ::usleep(1000);
  }
  ::kill(daemon_, SIGKILL);
  ::waitpid(daemon_, &status, 0);
}

}  // namespace onecopy::bench
