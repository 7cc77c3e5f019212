// SPDX-License-Identifier: Apache-2.0
// What calls cost that a program makes for each frame: the table "What calls cost" in docs/reference/cpp.md.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <fstream>
#include <functional>
#include <map>
#include <string>

#include "onecopy/channel/pipe.h"
#include "onecopy/channel/queue.h"
#include "onecopy/memory/copy.h"
#include "onecopy/share/bundle.h"
#include "onecopy/share/share.h"
#include "support/child.h"
#include "support/note.h"
#include "support/watchdog.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && defined(__x86_64__)

namespace onecopy::testing {
namespace {

/// The calls of malloc() and of locks that this thread has made.
thread_local std::uint64_t allocations = 0;
thread_local std::uint64_t locks = 0;

template <class Function>
Function* next_of(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace
}  // namespace onecopy::testing

// The linker finds the program's functions before the functions of libc, also for libstdc++.
extern "C" {
void* __libc_malloc(std::size_t size);
void* malloc(std::size_t size) {
  ++onecopy::testing::allocations;
  return __libc_malloc(size);
}
int pthread_mutex_lock(pthread_mutex_t* mutex) {
  static auto* const lock = onecopy::testing::next_of<int(pthread_mutex_t*)>("pthread_mutex_lock");
  ++onecopy::testing::locks;
  return lock(mutex);
}
int pthread_rwlock_rdlock(pthread_rwlock_t* mutex) {
  static auto* const lock = onecopy::testing::next_of<int(pthread_rwlock_t*)>("pthread_rwlock_rdlock");
  ++onecopy::testing::locks;
  return lock(mutex);
}
}

namespace onecopy {
namespace {

using testing::Child;
using testing::Note;
using testing::Shared;
using testing::Watchdog;

constexpr int kCalls = 64'000;
constexpr int kCallsWithoutSystemCalls = 16'000;
constexpr int kTries = 10;

/// Ends the process at the first system call of this thread other than its end and its report.
void forbid_system_calls() {
  const auto allow = [](std::uint32_t number) {
    return sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1);
  };
  const sock_filter yes = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  sock_filter program[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                           allow(__NR_exit_group),
                           yes,
                           allow(__NR_write),
                           yes,
                           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP)};
  sock_fprog filter{std::size(program), program};
  struct sigaction report {};
  report.sa_flags = SA_SIGINFO;
  report.sa_sigaction = [](int, siginfo_t* info, void*) {
    char text[] = "system call 000\n";
    for (int at = 14, number = info->si_syscall; at > 11; --at, number /= 10)
      text[at] = static_cast<char>('0' + number % 10);
    [[maybe_unused]] const auto written = ::write(2, text, sizeof text - 1);
    ::_exit(1);
  };
  ::sigaction(SIGSYS, &report, nullptr);
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
    ::_exit(2);
}

struct Counts {
  std::uint64_t allocations;
  std::uint64_t locks;
};

/// Returns how often something happens in a call, rounded.
std::string often(std::uint64_t count) {
  const std::uint64_t rounded = (count + kCalls / 2) / kCalls;
  return count == 0 ? "no" : rounded == 0 ? "sometimes" : std::to_string(rounded);
}

/// Returns whether many calls in another process make no system call.
bool runs_without_system_calls(const std::function<void()>& call) {
  Child without([&] {
    for (int i = 0; i < kCalls; ++i) call();
    forbid_system_calls();
    for (int i = 0; i < kCallsWithoutSystemCalls; ++i) call();
    ::_exit(0);
  });
  const int status = without.join();
  EXPECT_TRUE(status == 0 || status == 1) << status;
  return status == 0;
}

/// Returns the columns of the table for a call, of which many have been made before. Calls that meet another thread at a
/// lock may wait, so one of several runs without a system call shows that a call needs none.
std::string costs_of(const std::function<void()>& call) {
  for (int i = 0; i < kCalls; ++i) call();
  const Counts before{testing::allocations, testing::locks};
  for (int i = 0; i < kCalls; ++i) call();
  const Counts after{testing::allocations, testing::locks};
  bool is_without = false;
  for (int i = 0; i < kTries && !is_without; ++i) is_without = runs_without_system_calls(call);
  return often(after.allocations - before.allocations) + " | " + often(after.locks - before.locks) + " | " +
         (is_without ? "no" : "yes");
}

/// Returns the rows of the table in docs/reference/cpp.md: the columns for each call.
std::map<std::string, std::string> rows_of_the_page() {
  std::ifstream page(ONECOPY_SOURCE_DIR "/docs/reference/cpp.md");
  std::map<std::string, std::string> rows;
  bool is_in_table = false;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("## ")) is_in_table = line == "## What calls cost";
    const std::size_t end = line.find("` | ");
    if (is_in_table && line.starts_with("| `") && end != std::string::npos)
      rows[line.substr(3, end - 3)] = line.substr(end + 4, line.rfind(" |") - end - 4);
  }
  return rows;
}

TEST(CallCosts, AreWhatThePageSays) {
  const Watchdog watchdog;
  Shared<Note> note;
  Child owner([&] {
    const Tensor theirs = empty(Layout(DType::f32, {1000}));
    const Handle handle = share(theirs);
    note->write(handle.to_text());
    note->serve_until(2);
  });
  const Handle theirs = Handle::from_text(note->read());
  const Tensor borrowed = open(theirs), tensor = empty(Layout(DType::f32, {1000})),
               other = copy(tensor.view());
  const Handle bundle_handle = share_bundle(std::vector<NamedTensor>{{"w", tensor}});
  const Bundle bundle = Bundle::open(bundle_handle);
  // A child that ends between its calls leaves an item, which must not meet calls of another kind.
  Queue of_tensors = Queue::create(), of_messages = Queue::create(), queue = Queue::create();
  auto [mine, yours] = Pipe::create();
  const Message header{1, Bytes(16), {tensor}};
  const std::map<std::string, std::function<void()>> calls{
      {"Tensor(tensor)", [&] { const Tensor again = tensor; }},
      {"tensor.as<float>()", [&] { *tensor.as<float>() = 1; }},
      {"tensor.slice(0, 10, 20)", [&] { tensor.slice(0, 10, 20); }},
      {"empty(layout)", [&] { empty(tensor.layout()); }},
      {"copy_into(a, b)", [&] { copy_into(tensor.view(), other.view()); }},
      {"share(tensor)", [&] { share(tensor); }},
      {"handle.to_bytes()", [&] { theirs.to_bytes(); }},
      {"open(handle)", [&] { open(theirs); }},
      {"bundle.tensor(row)", [&] { bundle.tensor(0); }},
      {"queue.try_put(tensor), queue.try_get_tensor()",
       [&] {
         of_tensors.try_put(borrowed);
         of_tensors.try_get_tensor();
       }},
      {"queue.try_put(message), queue.try_get()",
       [&] {
         of_messages.try_put(header);
         of_messages.try_get();
       }},
      {"queue.try_get() of an empty queue", [&] { queue.try_get(); }},
      {"queue.size()", [&] { queue.size(); }},
      {"pipe.send(tensor), pipe.try_recv_tensor()",
       [&, &mine = mine, &yours = yours] {
         mine.send(tensor);
         yours.try_recv_tensor();
       }},
  };
  const auto rows = rows_of_the_page();
  EXPECT_EQ(rows.size(), calls.size());
  for (const auto& [name, call] : calls) {
    const auto row = rows.find(name);
    EXPECT_EQ(row == rows.end() ? "missing" : row->second, costs_of(call)) << name;
  }
  note->step = 2;
}

}  // namespace
}  // namespace onecopy

#endif
