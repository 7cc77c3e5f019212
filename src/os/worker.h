// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>

#include "os/mutex.h"

namespace onecopy {

/// A task that may take long, done on request by a thread of its own, which the first request starts.
///
/// Thread safety: all members may be called concurrently. A forked child has no such thread, and runs no task of its
/// parent's. REQUIRES: destroyed only when the thread has stopped, or never.
class Worker {
 public:
  /// `name` is the thread's, of 15 characters at most.
  Worker(const char* name, std::function<void()> task) : name_(name), task_(std::move(task)) {}
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// The task runs soon; if it is under way, it runs once more from the beginning. Never waits. If the system has no
  /// more threads, this has no effect: ask again.
  void request() noexcept;
  /// The task is not started any more. Waits for one that is under way, `patience` at most; returns false if it goes
  /// on.
  bool stop(std::chrono::milliseconds patience) noexcept;

 private:
  void run() noexcept;

  const char* const name_;
  const std::function<void()> task_;
  Mutex mutex_;
  Condition changed_;
  bool has_thread_ GUARDED_BY(mutex_) = false;
  bool is_wanted_ GUARDED_BY(mutex_) = false;
  bool is_stopping_ GUARDED_BY(mutex_) = false;
};

}  // namespace onecopy
