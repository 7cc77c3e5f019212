// SPDX-License-Identifier: Apache-2.0
#include "support/child.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <utility>

#include "support/watchdog.h"

namespace onecopy::testing {
namespace {

int count_failures() {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  if (!test) return 0;
  int failures = 0;
  for (int i = 0; i < test->result()->total_part_count(); ++i)
    failures += test->result()->GetTestPartResult(i).failed() ? 1 : 0;
  return failures;
}

int run(const std::function<void()>& body) {
  const int before = count_failures();
  try {
    body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "child %d: %s\n", ::getpid(), error.what());
    return Child::kThrew;
  }
  return std::min(count_failures() - before, Child::kThrew - 1);
}

}  // namespace

Child::Child(const std::function<void()>& body) {
  std::fflush(nullptr);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) throw std::bad_alloc();
  if (pid_ > 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(Child::kThrew);
  const int status = run(body);
  std::fflush(nullptr);
  ::_exit(status);  // runs no destructors, since the test's objects belong to the parent
}

Child::Child(Child&& other) noexcept
    : pid_(other.pid_), reaped_(std::exchange(other.reaped_, true)), status_(other.status_) {}

Child::~Child() {
  if (!reaped_) kill();
}

bool Child::has_ended() {
  if (reaped_) return true;
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) return false;
  status_ = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  reaped_ = true;
  return true;
}

int Child::join(std::chrono::milliseconds deadline) {
  if (!eventually([this] { return has_ended(); }, deadline)) {
    ADD_FAILURE() << "child " << pid_ << " did not end within " << deadline.count() << " ms";
    Watchdog::dump_stacks();  // shows where the child hangs, if a Watchdog was made before
    kill();
  }
  return status_;
}

void Child::kill(int signal) {
  if (reaped_) return;
  this->signal(signal);
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  status_ = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  reaped_ = true;
}

void Child::signal(int number) noexcept {
  if (reaped_ || ::kill(pid_, number) != 0 || number != SIGSTOP) return;
  siginfo_t stopped;
  ::waitid(P_PID, static_cast<id_t>(pid_), &stopped, WSTOPPED | WNOWAIT);
}

JoinedChild::~JoinedChild() {
  if (::testing::Test::HasFatalFailure() || std::uncaught_exceptions() > 0) return;
  EXPECT_EQ(join(), 0) << "child " << pid();
}

}  // namespace onecopy::testing
