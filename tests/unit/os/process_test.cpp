// SPDX-License-Identifier: Apache-2.0
#include "os/process.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "expect_error.h"
#include "support/child.h"

namespace onecopy {
namespace {

using testing::Child;
using testing::eventually;
using testing::JoinedChild;

/// A process that lives until it is killed.
Child sleeper() {
  return Child([] { ::pause(); });
}

TEST(Process, PidfdSeesTheExitOfTheProcess) {
  Child child = sleeper();
  const Fd pidfd = open_pidfd(child.pid());
  EXPECT_FALSE(has_exited(pidfd));
  child.kill();
  EXPECT_TRUE(has_exited(pidfd));
}

TEST(Process, PidfdSeesTheExitBeforeTheParentHasWaited) {
  Child child = sleeper();
  const Fd pidfd = open_pidfd(child.pid());
  child.signal(SIGKILL);
  EXPECT_TRUE(eventually([&] { return has_exited(pidfd); }));
  EXPECT_GT(process_start_time(child.pid()), 0u) << "a zombie was waited for by somebody";
}

/// Its own number there is 1, and /proc still shows the namespace before.
TEST(Process, InAPidNamespaceWithoutAProcOfItsOwnItsStartIsKnown) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, who can make a PID namespace";
  const std::uint64_t start = process_start_time(current_pid());
  JoinedChild child([&] {
    ASSERT_EQ(::unshare(CLONE_NEWPID), 0);
    const pid_t first = ::fork();
    if (first == 0) {
      const pid_t second = ::fork();
      if (second == 0) ::pause();
      const bool is_right = current_pid() == 1 && number_in_proc(1) > 1 && process_start_time(1) >= start &&
                            number_in_proc(second) > number_in_proc(1) &&
                            process_start_time(second) >= process_start_time(1);
      ::kill(second, SIGKILL);
      ::_exit(is_right ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(first, &status, 0), first);
    EXPECT_EQ(status, 0);
  });
}

TEST(Process, AProcessThatIsGoneCannotBeWatched) {
  Child child([] {});
  const int pid = child.pid();
  child.join();
  const std::string why = expect_error(ErrorCode::peer_died, [&] { open_pidfd(pid); });
  EXPECT_PRED2(contains, why, std::to_string(pid));
  EXPECT_EQ(process_start_time(pid), 0u);
  EXPECT_EQ(process_name(pid), "");
}

TEST(Process, WatchingWithoutADescriptorIsAnError) {
  expect_error(ErrorCode::invalid_argument, [] { has_exited(Fd()); });
  Fd closed = open_pidfd(::getpid());
  ::close(closed.get());
  EXPECT_FALSE(has_exited(closed));
  closed.release();
}

/// It is remembered, and fork's handlers do not run in a child of a bare clone(2).
TEST(Process, TheNumberOfAChildIsItsOwnHoweverItWasMade) {
  EXPECT_EQ(current_pid(), ::getpid());
  Child forked([] { EXPECT_EQ(current_pid(), ::getpid()); });
  EXPECT_EQ(forked.join(), 0);
  const auto cloned = static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
  if (cloned == 0) ::_exit(current_pid() == ::getpid() ? 0 : 1);
  ASSERT_GT(cloned, 0);
  int status = -1;
  EXPECT_EQ(::waitpid(cloned, &status, 0), cloned);
  EXPECT_EQ(status, 0);
}

TEST(Process, StartTimeStaysTheSameAndLaterProcessesStartLater) {
  const std::uint64_t own = process_start_time(current_pid());
  EXPECT_GT(own, 0u);
  EXPECT_EQ(process_start_time(current_pid()), own);
  Child child = sleeper();
  EXPECT_GE(process_start_time(child.pid()), own);
}

TEST(Process, StartTimeIsFoundBehindNamesWithSpacesAndBrackets) {
  JoinedChild child([] {
    const std::uint64_t before = process_start_time(current_pid());
    ::prctl(PR_SET_NAME, "a) R 1 (2 ) 3");
    EXPECT_EQ(process_start_time(current_pid()), before);
    EXPECT_EQ(process_name(current_pid()), "a) R 1 (2 ) 3");
  });
}

TEST(Process, BootIdIsTheKernels) {
  const auto id = boot_id();
  EXPECT_EQ(id, boot_id());
  EXPECT_TRUE(std::any_of(id.begin(), id.end(), [](std::uint8_t byte) { return byte != 0; }));
  EXPECT_EQ(id[6] >> 4, 4) << "not a random UUID";
}

TEST(Process, UsableCpusFollowTheAffinityMask) {
  EXPECT_GE(usable_cpus(), 1);
  EXPECT_LE(usable_cpus(), ::sysconf(_SC_NPROCESSORS_CONF));
  JoinedChild child([] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(::sched_getcpu()), &one);
    ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_EQ(usable_cpus(), 1);
  });
}

}  // namespace
}  // namespace onecopy
