// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>

#include "os/mutex.h"

namespace onecopy {

/// A task that may take long and runs on request on a thread of its own, which the first request starts.
///
/// Thread safety: all members may be called concurrently. A forked child does not have the thread, and runs no task of
/// its parent. REQUIRES: destroyed only after the thread has stopped, or never.
class Worker {
 public:
  /// Constructs a worker. `name` names the thread, in at most 15 characters.
  Worker(const char* name, std::function<void()> task) : name_(name), task_(std::move(task)) {}

  /// Requests a run of the task, which starts soon; if the task is running, it runs once more afterwards. Never waits.
  /// Does nothing if the system's limit of threads is reached: request again then.
  void request() noexcept;
  /// Stops starting the task, and waits up to `patience` for a running one. Returns false if it is still running.
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
