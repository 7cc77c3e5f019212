// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "os/mutex.h"
#include "rpc/node.h"

namespace onecopy::rpc {

/// Threads that do a node's work: one at first, and one more whenever all others are at work, up to `most`. At that bound
/// a thread whose function waits for a call of its own takes other work meanwhile, so that calls which wait for each other
/// do not use up the threads.
/// Thread safety: add() may be called concurrently, join() by one thread.
class Workers {
 public:
  /// `run` does one piece of work, and throws nothing.
  Workers(Node& node, std::size_t most, std::function<void(Work&)> run)
      : node_(node), most_(most), run_(std::move(run)) {}

  void add();
  /// Called by a thread that waits for a call, now and then: does work that no other thread is left for.
  void help() noexcept;
  /// Waits until all have ended. REQUIRES: the node is stopped.
  void join();

 private:
  void work() noexcept;

  Node& node_;
  const std::size_t most_;
  const std::function<void(Work&)> run_;
  Mutex mutex_;
  std::vector<std::thread> threads_ GUARDED_BY(mutex_);
  bool is_closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace onecopy::rpc
