// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <thread>

#include "os/mutex.h"
#include "rpc/node.h"

namespace onecopy::rpc {

/// Threads that do a node's work: one at first, and one more whenever all others are at work, up to `max_threads`. At that bound
/// a thread whose function waits for a call of its own takes other work meanwhile, so that calls which wait for each other
/// do not use up the threads. Threads that a burst has started end when they have had nothing to do for a while.
/// Thread safety: all members may be called concurrently.
class Workers {
 public:
  /// `run` does one piece of work, and throws nothing.
  Workers(Node& node, std::size_t max_threads, std::function<void(Work&)> run)
      : node_(node), max_threads_(max_threads), run_(std::move(run)) {}

  void add();
  /// Called by a thread that waits for a call, now and then: does work that no other thread is left for.
  void help() noexcept;
  /// Waits until all have ended; called by one of the threads, returns at once. REQUIRES: the node is stopped.
  void join();
  /// How many threads there are.
  std::size_t count() const {
    const LockGuard lock(mutex_);
    return threads_.size();
  }

 private:
  void work() noexcept;
  void retire() noexcept;
  bool is_own_thread() const noexcept;

  Node& node_;
  const std::size_t max_threads_;
  const std::function<void(Work&)> run_;
  mutable Mutex mutex_;
  std::list<std::thread> threads_ GUARDED_BY(mutex_);
  std::list<std::thread> retired_ GUARDED_BY(mutex_);  ///< have ended, or are about to
  bool is_closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace onecopy::rpc
