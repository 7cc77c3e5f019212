// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "rpc/node.h"

namespace onecopy::rpc {

/// Threads that do a node's work: one at first, and one more whenever all others are at work, up to 1024.
/// Thread safety: add() may be called concurrently, join() by one thread.
class Workers {
 public:
  /// `run` does one piece of work, and throws nothing.
  Workers(Node& node, std::function<void(Work&)> run) : node_(node), run_(std::move(run)) {}

  void add();
  /// Waits until all have ended. REQUIRES: the node is stopped.
  void join();

 private:
  static constexpr std::size_t kMost = 1024;

  void work() noexcept;

  Node& node_;
  const std::function<void(Work&)> run_;
  std::mutex mutex_;
  std::vector<std::thread> threads_;
  bool is_closed_ = false;
};

}  // namespace onecopy::rpc
