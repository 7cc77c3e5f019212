// SPDX-License-Identifier: Apache-2.0
#include "os/process_watch.h"

#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "os/fork_hook.h"
#include "os/mutex.h"
#include "os/process.h"

namespace onecopy {
namespace {

struct Waiting {
  EventLoop* loop;
  EventLoop::Task task;
};

/// Guards the processes and their tasks. An event loop's lock is taken under this one, which no fork waits for.
constinit Mutex watching;

// The fork happens between these calls, which the analysis cannot follow.
void lock_watching() NO_THREAD_SAFETY_ANALYSIS { watching.lock(); }
void unlock_watching() NO_THREAD_SAFETY_ANALYSIS { watching.unlock(); }

const ForkHook kWatchingAtFork{ForkRank::leaves, {&lock_watching, &unlock_watching, &unlock_watching}};

/// Returns whether both descriptors may be pidfds of one process. Some kernels give all pidfds one inode; and a program
/// that closes all descriptors may have given the number of the first to another file.
bool are_alike(const Fd& first, const Fd& second) noexcept {
  struct stat one {};
  struct stat other {};
  return ::fstat(first.get(), &one) == 0 && ::fstat(second.get(), &other) == 0 &&
         one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

}  // namespace

struct ProcessWatch::Process {
  using Known = std::map<int, std::weak_ptr<Process>>;

  /// Returns the known processes by number. The map is never destroyed, because static objects may outlive it.
  static Known& known() REQUIRES(watching) {
    static Known* const made = new Known;
    return *made;
  }
  static void run_tasks(const std::weak_ptr<Process>& of, EventLoop& loop);

  bool is_waited_for_on(const EventLoop& loop) const {
    return std::ranges::any_of(tasks, [&](const auto& task) { return task.second.loop == &loop; });
  }

  const int pid;
  const Fd pidfd;
  std::map<std::uint64_t, Waiting> tasks{};
  std::uint64_t last_task = 0;
};

/// Compares by number, since two processes that live at one time have different numbers: the process that is known under
/// the number lives after `pidfd` was opened, and the process of `pidfd` lives after that.
ProcessWatch::ProcessWatch(int pid, Fd pidfd) {
  if (!pidfd) return;
  const LockGuard lock(watching);
  std::weak_ptr<Process>* const place = pid != 0 ? &Process::known()[pid] : nullptr;
  if (place) process_ = place->lock();
  if (process_ && are_alike(process_->pidfd, pidfd) && !has_exited(process_->pidfd) && !has_exited(pidfd))
    return;
  process_ = std::shared_ptr<Process>(new Process{pid, std::move(pidfd)});
  if (place) *place = process_;
}

ProcessWatch::ProcessWatch(ProcessWatch&& other) noexcept
    : process_(std::move(other.process_)), task_(std::exchange(other.task_, 0)) {}

ProcessWatch& ProcessWatch::operator=(ProcessWatch&& other) noexcept {
  ProcessWatch ended(std::move(*this));
  process_ = std::move(other.process_);
  task_ = std::exchange(other.task_, 0);
  return *this;
}

ProcessWatch::~ProcessWatch() {
  if (!process_) return;
  stop();
  const LockGuard lock(watching);
  const int pid = process_->pid;
  process_.reset();
  const auto at = Process::known().find(pid);
  if (at != Process::known().end() && at->second.expired()) Process::known().erase(at);
}

bool ProcessWatch::has_ended() const noexcept { return has_exited(process_->pidfd); }

void ProcessWatch::start(EventLoop& loop, EventLoop::Task on_end) {
  stop();
  const LockGuard lock(watching);
  const bool is_first = !process_->is_waited_for_on(loop);
  const std::uint64_t number = ++process_->last_task;
  const auto at = process_->tasks.emplace(number, Waiting{&loop, std::move(on_end)}).first;
  try {
    if (is_first)
      loop.add(process_->pidfd.get(),
               [of = std::weak_ptr(process_), &loop] { Process::run_tasks(of, loop); });
  } catch (...) {
    process_->tasks.erase(at);
    throw;
  }
  task_ = number;
}

void ProcessWatch::stop() noexcept {
  if (task_ == 0) return;
  // What the task owns may take other locks, so the task is destroyed without this one.
  decltype(process_->tasks)::node_type ended;
  const LockGuard lock(watching);
  ended = process_->tasks.extract(std::exchange(task_, 0));
  if (ended.empty()) return;  // it was run
  EventLoop& loop = *ended.mapped().loop;
  if (!process_->is_waited_for_on(loop)) loop.remove(process_->pidfd.get());
}

/// Runs the tasks of one loop, each without the lock. If a task throws, the loop reports the end again for the others.
void ProcessWatch::Process::run_tasks(const std::weak_ptr<Process>& of, EventLoop& loop) {
  for (;;) {
    EventLoop::Task task;
    {
      const LockGuard lock(watching);
      const std::shared_ptr<Process> process = of.lock();
      if (!process || !has_exited(process->pidfd)) return;
      const auto at =
          std::ranges::find_if(process->tasks, [&](const auto& one) { return one.second.loop == &loop; });
      if (at == process->tasks.end()) return;
      task = std::move(at->second.task);
      process->tasks.erase(at);
      if (!process->is_waited_for_on(loop)) loop.remove(process->pidfd.get());
    }
    task();
  }
}

}  // namespace onecopy
