// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "state.h"

namespace sim {

using Operation = std::function<void()>;
struct Node;

/// A node of an operation whose parameters cannot be read.
std::shared_ptr<Node> host_node(Operation operation);

/// The recording of a stream in place of its work.
struct Capture {
  int mode = 0;
  std::thread::id thread;
  bool invalid = false;
  std::vector<std::shared_ptr<Node>> nodes;
};

/// How far a stream has come; outlives it.
class Progress {
 public:
  void advance();
  void wait(std::uint64_t ticket);
  bool has_reached(std::uint64_t ticket) const { return completed_ >= ticket; }

 private:
  std::atomic<std::uint64_t> completed_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
};

/// A stream's progress, and how far it is to come.
struct Reach {
  std::shared_ptr<Progress> progress;
  std::uint64_t ticket;
};

/// Operations in order, done by a thread of the stream's own.
struct Stream {
  static Stream* make(Context& context, unsigned flags);
  /// The stream behind a handle of the caller's; null when there is none such.
  static Stream* find(CUstream handle);
  static void synchronize_all(const Context& context);
  /// How far each of the context's streams will have come once all that is in them now is done. None, and all captures
  /// in the context are spoilt, while one is under way.
  static std::optional<std::vector<Reach>> reach_all(const Context& context);

  /// Adds an operation, or records it. An error when capturing forbids it, and when the stream's context has failed.
  CUresult submit(Operation operation);
  void synchronize();
  bool is_idle() const;
  /// Its pending work is still done.
  void destroy();

  Context* context = nullptr;
  unsigned flags = 0;
  std::unique_ptr<Capture> capture;

 private:
  void run();
  Operation after_others(Operation operation);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Operation> queue_;
  std::uint64_t submitted_ = 0;
  bool has_thread_ = false;
  bool ending_ = false;
  std::shared_ptr<Progress> progress_ = std::make_shared<Progress>();
};

}  // namespace sim
