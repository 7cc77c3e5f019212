// SPDX-License-Identifier: Apache-2.0
// pytorch#165685, NeMo-RL#2254: pidfd_getfd() needs CAP_SYS_PTRACE, which containers lack, so tensors were copied;
// vllm#55906, ucx#11978: containers' namespaces of processes, where others fell back to TCP without a word.
// Our descriptors travel over a socket, which needs neither.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <functional>
#include <string>
#include <string_view>

#include "onecopy/channel/queue.h"
#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "support/child.h"
#include "support/cuda_calls.h"
#include "support/note.h"

namespace onecopy {
namespace {

using namespace testing;

Tensor seven() {
  const Tensor tensor = empty(Layout(DType::u8, {4096}));
  std::memset(tensor.data(), 7, tensor.nbytes());
  return tensor;
}

void open_and_write(const std::string& text) {
  const Tensor tensor = open(Handle::from_text(text));
  EXPECT_EQ(tensor.as<char>()[4095], 7);
  tensor.as<char>()[0] = 8;
}

bool opens_and_writes(const std::string& text) {
  try {
    EXPECT_EQ(::getpid(), 1);
    open_and_write(text);
    return !::testing::Test::HasFailure();
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
    return false;
  }
}

void drop_capabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2] = {};
  EXPECT_EQ(::syscall(SYS_capset, &header, none), 0);
}

/// Returns whether this process may take descriptors of process `pid`.
bool may_take_descriptors(pid_t pid) {
  const auto pidfd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  const long taken = ::syscall(SYS_pidfd_getfd, pidfd, 0, 0);
  if (taken >= 0) ::close(static_cast<int>(taken));
  ::close(pidfd);
  return taken >= 0;
}

TEST(Containers, Pytorch165685WhoMayNotTraceTheOwnerOpensItsTensorsAllTheSame) {
  Shared<Note> note;
  JoinedChild owner([&] {
    ::prctl(PR_SET_DUMPABLE, 0);
    const Tensor tensor = seven();
    note->write(share(tensor).to_text());
    note->reach(2);
    EXPECT_EQ(tensor.as<char>()[0], 8);
  });
  in_child([&] {
    const std::string text = note->read();
    drop_capabilities();
    EXPECT_FALSE(may_take_descriptors(owner.pid()));
    open_and_write(text);
  });
  note->step = 2;
}

TEST(Containers, Vllm55906Ucx11978ANamespaceOfProcessesIsNoBarrier) {
  Shared<Note> note;
  Child owner([&] {
    const Tensor tensor = seven();
    note->write(share(tensor).to_text());
    note->reach(2);
    EXPECT_EQ(tensor.as<char>()[0], 8);
  });
  Shared<Note> refused;
  const std::string text = note->read();
  in_child([&] {
    if (::unshare(CLONE_NEWPID) != 0) return refused->write(std::strerror(errno));
    const pid_t first =
        ::fork();  // no Child: that would ask for its parent's number, which it has none here
    if (first == 0) ::_exit(opens_and_writes(text) ? 0 : 1);
    int status = -1;
    EXPECT_EQ(::waitpid(first, &status, 0), first);
    EXPECT_EQ(status, 0);
  });
  if (refused->step == 1) open_and_write(text);
  note->step = 2;
  EXPECT_EQ(owner.join(), 0);
  if (refused->step == 1) GTEST_SKIP() << "wants a PID namespace: " << refused->read();
}

/// 0 when `use` is refused with the reason and the way out.
int status_of_refused(const std::function<void()>& use) {
  try {
    use();
  } catch (const Error& error) {
    const std::string_view why = error.what();
    const bool says_what_to_do = why.find("PID namespace") != why.npos && why.find("--pid=") != why.npos;
    return error.code() == ErrorCode::unsupported && says_what_to_do ? 0 : 2;
  }
  return 1;
}

TEST(Containers, AQueueOfAnotherNamespaceOfProcessesIsRefusedAndNotDamaged) {
  Shared<Note> refused;
  Queue queue = Queue::create();
  const std::string text = queue.handle().to_text();
  in_child([&] {
    queue.put(Message{1, {}, {}});
    if (::unshare(CLONE_NEWPID) != 0) return refused->write(std::strerror(errno));
    const pid_t first = ::fork();  // no Child, see above
    if (first == 0) {
      const int connecting = status_of_refused([&] { Queue::connect(Handle::from_text(text)); });
      ::_exit(connecting * 10 + status_of_refused([&] { queue.put(Message{2, {}, {}}); }));
    }
    int status = -1;
    EXPECT_EQ(::waitpid(first, &status, 0), first);
    EXPECT_EQ(status, 0);
    queue.put(Message{3, {}, {}});
  });
  if (refused->step == 1) GTEST_SKIP() << "wants a PID namespace: " << refused->read();
  EXPECT_EQ(queue.get().tag, 1u);
  EXPECT_EQ(queue.get().tag, 3u);
}

}  // namespace
}  // namespace onecopy
