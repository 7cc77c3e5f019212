// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>

namespace onecopy {

/// Something that may take long, done again and again by a thread of its own, which the first who asks starts.
///
/// Thread safety: all members may be called concurrently. A forked child has no such thread, and calls nothing of
/// its parent's. Destroyed only when the thread has stopped, or never.
class Errand {
 public:
  /// `name` is the thread's, of 15 characters at most.
  Errand(const char* name, std::function<void()> task) : name_(name), task_(std::move(task)) {}
  Errand(const Errand&) = delete;
  Errand& operator=(const Errand&) = delete;

  /// It is done soon, from the beginning also when it is under way. Never waits. Without effect when no thread is to
  /// be had: then ask again.
  void request() noexcept;
  /// It is not done any more. Waits for one that is under way, `patience` at most: false when that goes on.
  bool stop(std::chrono::milliseconds patience) noexcept;

 private:
  void run() noexcept;

  const char* const name_;
  const std::function<void()> task_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool has_thread_ = false;
  bool is_wanted_ = false;
  bool is_stopping_ = false;
};

}  // namespace onecopy
