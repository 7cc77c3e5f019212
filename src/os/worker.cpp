// SPDX-License-Identifier: Apache-2.0
#include "os/worker.h"

#include <fmt/format.h>
#include <pthread.h>

#include <exception>
#include <thread>

#include "os/blocked_signals.h"
#include "os/log.h"

namespace onecopy {

void Worker::request() noexcept {
  const std::lock_guard lock(mutex_);
  if (is_stopping_) return;
  try {
    const BlockedSignals blocked;
    if (!has_thread_) std::thread([this] { run(); }).detach();
    has_thread_ = true;
    is_wanted_ = true;
    changed_.notify_all();
  } catch (const std::exception&) {  // the system has no more threads
  }
}

bool Worker::stop(std::chrono::milliseconds patience) noexcept {
  std::unique_lock lock(mutex_);
  is_stopping_ = true;
  changed_.notify_all();
  return changed_.wait_for(lock, patience, [this] { return !has_thread_; });
}

void Worker::run() noexcept {
  pthread_setname_np(pthread_self(), name_);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return is_wanted_ || is_stopping_; });
    if (is_stopping_) break;
    is_wanted_ = false;
    lock.unlock();
    try {
      task_();
    } catch (const std::exception& e) {
      log_warning(fmt::format("{}: {}", name_, e.what()));
    }
    lock.lock();
  }
  has_thread_ = false;
  // Under the lock: the thread that waits in stop() may destroy this object next.
  changed_.notify_all();
}

}  // namespace onecopy
