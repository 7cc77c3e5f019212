// SPDX-License-Identifier: Apache-2.0
#include "os/worker.h"

#include <pthread.h>

#include <exception>
#include <thread>

#include "os/blocked_signals.h"
#include "os/log.h"

namespace onecopy {

void Worker::request() noexcept {
  const LockGuard lock(mutex_);
  if (is_stopping_) return;
  try {
    const BlockedSignals blocked;
    if (!has_thread_) std::thread([this] { run(); }).detach();
    has_thread_ = true;
    is_wanted_ = true;
    changed_.notify_all();
  } catch (const std::exception&) {  // the system's limit of threads is reached
  }
}

bool Worker::stop(std::chrono::milliseconds patience) noexcept {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  const LockGuard lock(mutex_);
  is_stopping_ = true;
  changed_.notify_all();
  while (has_thread_)
    if (!changed_.wait_until(mutex_, deadline)) break;
  return !has_thread_;
}

void Worker::run() noexcept {
  pthread_setname_np(pthread_self(), name_);
  ReleasableLock lock(mutex_);
  for (;;) {
    while (!is_wanted_ && !is_stopping_) changed_.wait(mutex_);
    if (is_stopping_) break;
    is_wanted_ = false;
    lock.unlock();
    try {
      task_();
    } catch (const std::exception& e) {
      log_warning("{}: {}", name_, e.what());
    }
    lock.lock();
  }
  has_thread_ = false;
  // The call is made under the lock, because the thread that waits in stop() may destroy this object next.
  changed_.notify_all();
}

}  // namespace onecopy
