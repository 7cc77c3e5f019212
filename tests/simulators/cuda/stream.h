// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "simulators/window_order.h"
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

struct Stream;

/// The next operation of the stream uses these addresses. REQUIRES: nothing is captured in it.
void note_use(Stream& stream, CUdeviceptr at, std::size_t bytes, bool writes);

/// Operations in order, done by a thread of the stream's own.
struct Stream {
  static Stream* make(Context& context, unsigned flags);
  /// The stream behind a handle of the caller's; null when there is none such.
  static Stream* find(CUstream handle);
  static void synchronize_all(const Context& context);
  /// Of all that is in the context's streams now.
  static Clock clock_of_all(const Context& context);
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
  const unsigned long long id = ++last_id;
  std::unique_ptr<Capture> capture;
  WindowOrder::Line line;  ///< its operations in the order that programs have asked for

 private:
  inline static std::atomic<unsigned long long> last_id{0};
  void run();
  Operation after_others(Operation operation, Clock& before);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Operation> queue_;
  std::uint64_t submitted_ = 0;
  bool has_thread_ = false;
  bool ending_ = false;
  std::shared_ptr<Progress> progress_ = std::make_shared<Progress>();
};

}  // namespace sim
