// SPDX-License-Identifier: Apache-2.0
#include "support/watchdog.h"

#include <execinfo.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "support/proc_entries.h"

namespace onecopy::testing {
namespace {

namespace fs = std::filesystem;

int dump_signal() { return SIGRTMAX - 3; }

/// Writes the stack of the thread that runs this signal handler.
void write_own_stack(int) {
  char line[64];
  const int length =
      std::snprintf(line, sizeof line, "--- process %d thread %ld\n", ::getpid(), ::syscall(SYS_gettid));
  [[maybe_unused]] const ssize_t written = ::write(2, line, static_cast<std::size_t>(length));
  void* frames[64];
  ::backtrace_symbols_fd(frames, ::backtrace(frames, 64), 2);
}

void install_handler() {
  void* frame[1];
  ::backtrace(frame, 1);  // loads the unwinder, which a signal handler could not
  struct sigaction action {};
  action.sa_handler = write_own_stack;
  action.sa_flags = SA_RESTART;
  ::sigaction(dump_signal(), &action, nullptr);
}

/// Returns whether the signal mask `mask` of the process, e.g. "SigCgt:", contains the signal for dumps.
bool has_dump_signal(const fs::path& process, const std::string& mask) {
  std::ifstream status(process / "status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind(mask, 0) == 0)
      return std::strtoull(line.c_str() + mask.size(), nullptr, 16) >> (dump_signal() - 1) & 1;
  return false;
}

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// Writes the kernel's view of a thread that cannot or should not be interrupted.
void dump_kernel_view(const fs::path& task) {
  std::fprintf(stderr, "%s: %s, sleeps in %s, system call %s\n", task.c_str(),
               first_line(task / "comm").c_str(), first_line(task / "wchan").c_str(),
               first_line(task / "syscall").c_str());
}

/// Makes a thread write its stack, and waits up to a limit, so that the lines of two threads do not mix.
void dump_stack(int pid, const fs::path& task) {
  ::syscall(SYS_tgkill, pid, std::atoi(task.filename().c_str()), dump_signal());
  for (int wait = 0; wait < 200 && has_dump_signal(task, "SigPnd:"); ++wait) ::usleep(10'000);
  ::usleep(50'000);
}

void dump_process(int pid) {
  const fs::path process = "/proc/" + std::to_string(pid);
  const bool cooperates = has_dump_signal(process, "SigCgt:");
  for (const auto& task : proc_entries(process / "task")) {
    dump_kernel_view(task);
    if (cooperates) dump_stack(pid, task);
  }
}

/// Returns `pid` and all its descendants.
std::vector<int> family(int pid) {
  std::vector<int> all{pid};
  for (const auto& task : proc_entries("/proc/" + std::to_string(pid) + "/task")) {
    std::istringstream children(first_line(task / "children"));
    for (int child; children >> child;)
      for (const int member : family(child)) all.push_back(member);
  }
  return all;
}

}  // namespace

Watchdog::Watchdog(std::chrono::seconds limit) {
  install_handler();
  thread_ = std::thread([this, limit] { watch(limit); });
  // A test must not fork while the thread is in malloc, since AddressSanitizer's malloc does not survive the fork.
  std::unique_lock lock(mutex_);
  done_changed_.wait(lock, [this] { return watching_; });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  done_changed_.notify_all();
  thread_.join();
}

void Watchdog::dump_stacks() {
  for (const int pid : family(::getpid())) dump_process(pid);
}

void Watchdog::watch(std::chrono::seconds limit) {
  std::unique_lock lock(mutex_);
  watching_ = true;
  done_changed_.notify_all();
  if (done_changed_.wait_for(lock, limit, [this] { return done_; })) return;
  std::fprintf(stderr, "the test hangs: %lld seconds are over\n", static_cast<long long>(limit.count()));
  dump_stacks();
  for (const int pid : family(::getpid()))
    if (pid != ::getpid()) ::kill(pid, SIGKILL);
  std::abort();
}

}  // namespace onecopy::testing
