// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <thread>

#include "os/mutex.h"
#include "rpc/node.h"

namespace onecopy::rpc {

/// Threads that do a node's work: one at first, and one more whenever all others are at work. Where no further thread
/// may be started, a thread whose function waits for a call of its own takes other work while it waits, so that calls
/// which wait for each other do not use up the threads. Threads that a burst has started end when they have had nothing
/// to do for a while. Thread safety: all members may be called concurrently.
class Workers {
 public:
  /// Does one piece of work, and throws nothing.
  using Run = std::function<void(Work&)>;
  /// The threads are the program's own: `start` lets one more call work(), and throws nothing.
  Workers(Node& node, Run run, std::function<void()> start)
      : node_(node), run_(std::move(run)), start_(std::move(start)) {}
  /// Makes an object that starts up to `max_threads` threads itself.
  Workers(Node& node, std::size_t max_threads, Run run)
      : node_(node), run_(std::move(run)), start_([this] { add(); }), max_threads_(max_threads) {}

  void add();
  /// Does work in this thread until the node has no use for the thread.
  void work() noexcept;
  /// Does work that no other thread is left for. Called now and then by a thread that waits for a call of the node.
  static void help(const Node& node) noexcept;
  /// Waits until all have ended; called by one of the threads, returns at once. REQUIRES: the node is stopped.
  void join();
  /// Returns how many threads there are.
  std::size_t count() const {
    const LockGuard lock(mutex_);
    return threads_.size();
  }

 private:
  void retire() noexcept;
  bool is_own_thread() const noexcept;

  Node& node_;
  const Run run_;
  const std::function<void()> start_;
  const std::size_t max_threads_ = 0;
  mutable Mutex mutex_;
  std::list<std::thread> threads_ GUARDED_BY(mutex_);
  std::list<std::thread> retired_ GUARDED_BY(mutex_);  ///< have ended, or are about to
  bool is_closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace onecopy::rpc
