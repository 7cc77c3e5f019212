// SPDX-License-Identifier: Apache-2.0
#include "supervise.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>

#include <fmt/format.h>

#include "ferry_process.h"
#include "onecopy/core/error.h"
#include "store_table.h"
#include "text.h"

namespace onecopy::cli {
namespace {

sigset_t handled_signals() noexcept {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) ::sigaddset(&set, signal);
  return set;
}

int status_of(int status) noexcept {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/// Returns the versions that are lost if the keeper ends; none if the keeper does not answer.
VersionSum lost_versions() {
  try {
    return fates(store_state()).lost;
  } catch (const Error&) {
    return {};
  }
}

/// The processes of the keeper, which are a process group. Orphans of it become children of this process.
class KeeperGroup {
 public:
  explicit KeeperGroup(pid_t first) : group_(first) {}

  /// Returns 0 if the keeper was told to end: only then does a process of it end with 0. One that was killed before may
  /// be waited for after that.
  int status() const noexcept { return has_ended_in_order_ ? 0 : status_of(last_); }
  void end() const noexcept { ::kill(-group_, SIGTERM); }
  /// Waits for all children that have ended; the first process of a container has children of other programs, too. Returns
  /// whether a process of the keeper is left.
  bool reap(FerryProcess* ferry) {
    for (siginfo_t info{}; ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
         info = {}) {
      const bool is_ours = ::getpgid(info.si_pid) == group_;
      int status = 0;
      ::waitpid(info.si_pid, &status, 0);
      if (is_ours) {
        last_ = status;
        has_ended_in_order_ = has_ended_in_order_ || status == 0;
      }
      if (ferry && info.si_pid == ferry->pid()) ferry->start();
    }
    return ::kill(-group_, 0) == 0;
  }

 private:
  const pid_t group_;
  int last_ = 0;
  bool has_ended_in_order_ = false;
};

/// Says what ends with the keeper. Returns false if the user is to ask again.
bool may_end(int signal, bool is_asked_again) {
  const VersionSum lost = lost_versions();
  if (lost.versions == 0 || is_asked_again) return true;
  const bool asks = signal == SIGINT && ::isatty(STDIN_FILENO) == 1;
  if (asks)
    fmt::print(stderr, "onecopy: press Ctrl-C again to end the keeper. Lost then: {}\n", lost.str());
  else fmt::print(stderr, "onecopy: the keeper ends. Lost: {}\n", lost.str());
  return !asks;
}

int wait_for_end(KeeperGroup keeper, FerryProcess* ferry) {
  const sigset_t set = handled_signals();
  for (bool is_asked_again = false; keeper.reap(ferry);) {
    const int signal = ::sigwaitinfo(&set, nullptr);
    if (signal < 0 || signal == SIGCHLD) continue;
    if (may_end(signal, is_asked_again)) keeper.end();
    is_asked_again = true;
  }
  if (const int status = keeper.status(); status > 128)
    fmt::print(stderr,
               "onecopy: all processes of the store's keeper were killed (signal {}); versions that no "
               "process has open are lost\n",
               status - 128);
  return keeper.status();
}

}  // namespace

int supervise(const std::function<void()>& keeper, FerryProcess* ferry) {
  const sigset_t set = handled_signals();
  sigset_t before;
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  ::sigprocmask(SIG_BLOCK, &set, &before);
  const pid_t child = ::fork();
  if (child < 0) throw_errno("cannot start the store's keeper", errno);
  ::setpgid(child, child);  // both processes do so, since either may be first
  if (child != 0) return wait_for_end(KeeperGroup(child), ferry);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  keeper();
  return 0;
}

}  // namespace onecopy::cli
