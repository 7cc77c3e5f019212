// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <thread>

#include "os/mutex.h"
#include "rpc/node.h"

namespace onecopy::rpc {

/// The threads that do a node's work: one at first, and one more whenever all others are busy. If no further thread may
/// be started, a thread whose function waits for a call takes other work while it waits, so that calls which wait for
/// each other do not block all threads. Such a thread uses up to half of its stack for that. Once all threads have used
/// theirs, one more thread is started than the limit allows. Threads that a burst has started end when they have had
/// nothing to do for a while. Thread safety: all members may be called concurrently.
class Workers {
 public:
  /// Does one piece of work, and throws nothing.
  using Run = std::function<void(Work&)>;
  /// Makes an object for threads that the caller owns and limits: `start` makes one more thread call work(), and throws
  /// nothing.
  Workers(Node& node, Run run, std::function<void()> start)
      : node_(node), run_(std::move(run)), start_(std::move(start)) {}
  /// Makes an object that starts up to `max_threads` threads itself.
  Workers(Node& node, std::size_t max_threads, Run run)
      : node_(node), run_(std::move(run)), start_([this] { add(); }), max_threads_(max_threads) {}

  void add(bool beyond_limit = false);
  /// Does work in this thread until the node has no use for the thread.
  void work() noexcept;
  /// Does one piece of work if no other thread is free, and returns whether it did. A thread that waits for a call of the
  /// node calls it now and then.
  static bool help(Node& node) noexcept;
  /// Waits until the call is done, and calls help() meanwhile.
  static void wait_for(Node& node, const CallRef& call);
  /// Waits until all threads have ended. Returns at once if one of the threads calls it. REQUIRES: the node is stopped.
  void join();
  /// Returns how many threads there are.
  std::size_t count() const {
    const LockGuard lock(mutex_);
    return threads_.size();
  }

 private:
  static bool wait_once(Node& node, const CallRef& call, std::chrono::nanoseconds pause);
  bool has_room() const noexcept;
  void retire() noexcept;
  bool is_own_thread() const noexcept;

  Node& node_;
  const Run run_;
  const std::function<void()> start_;
  const std::size_t max_threads_ = 0;
  mutable Mutex mutex_;
  std::list<std::thread> threads_ GUARDED_BY(mutex_);
  std::list<std::thread> retired_ GUARDED_BY(mutex_);  ///< threads that have ended, or are about to
  bool is_closed_ GUARDED_BY(mutex_) = false;
  std::atomic<bool> has_lookout_{false};  ///< a thread that waits for a call looks for work often
};

}  // namespace onecopy::rpc
