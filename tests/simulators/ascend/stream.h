// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "simulators/window_order.h"
#include "state.h"

namespace sim {

/// Its answer is reported to the waiter for the stream.
using Operation = std::function<aclError()>;

/// A page of memory as an operation finds it.
struct Use {
  std::uint64_t memory;
  std::uint64_t page;
  std::uintptr_t window;
  bool writes;
};

struct Recorded {
  Operation operation;
  std::vector<Use> uses;
};

/// The recording of a stream in place of its work.
struct Capture {
  int mode = 0;
  std::thread::id thread;
  bool invalid = false;
  std::vector<Recorded> operations;
};

/// How far a stream has come; outlives it.
class Progress {
 public:
  void advance(aclError result);
  /// Says what the first operation said that failed.
  aclError wait(std::uint64_t ticket);
  bool wait_for(std::uint64_t ticket, int milliseconds);
  bool has_reached(std::uint64_t ticket) const { return completed_ >= ticket; }

 private:
  std::atomic<std::uint64_t> completed_{0};
  aclError failure_ = ACL_SUCCESS;
  std::mutex mutex_;
  std::condition_variable changed_;
};

/// Operations in order, done by a thread of the stream's own. The default stream is like any other.
struct Stream {
  static Stream* make(Context& context);
  /// The stream behind a handle, which must be of the current context; null otherwise. A null handle is the
  /// default stream.
  static Stream* find(aclrtStream handle);
  static aclError synchronize_all(const Context& context);

  /// Adds an operation, or records it.
  aclError submit(Operation operation, std::vector<Use> uses = {});
  aclError synchronize();
  bool synchronize_for(int milliseconds);
  bool is_idle() const;
  /// A call that its capture does not allow makes that useless. REQUIRES: it is captured.
  aclError spoil();
  /// Its pending work is still done.
  void destroy();

  Context* context = nullptr;
  std::unique_ptr<Capture> capture;
  WindowOrder::Line line;  ///< its operations in the order that programs have asked for

 private:
  void run();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Operation> queue_;
  std::uint64_t submitted_ = 0;
  bool has_thread_ = false;
  bool ending_ = false;
  std::shared_ptr<Progress> progress_ = std::make_shared<Progress>();
};

/// While a capture is under way, fails calls that its mode does not allow.
aclError forbid_in_capture();

}  // namespace sim
