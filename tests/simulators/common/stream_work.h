// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "simulators/window_order.h"

namespace sim {

/// Counts the operations that a stream has done. Outlives the stream. Thread safety: all members may be called
/// concurrently.
class Progress {
 public:
  /// Counts an operation. `result` is 0 or its error.
  void advance(int result);
  /// Waits until the stream has done `ticket` operations. Returns the first error of an operation, or 0.
  int wait(std::uint64_t ticket);
  /// Waits that long at most. Returns whether the stream has done `ticket` operations.
  bool wait_for(std::uint64_t ticket, int milliseconds);
  bool has_reached(std::uint64_t ticket) const { return completed_ >= ticket; }

 private:
  std::atomic<std::uint64_t> completed_{0};
  int failure_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
};

/// A point in a stream: the end of the operations that it had at some time.
struct Reach {
  std::shared_ptr<Progress> progress;
  std::uint64_t ticket;

  int wait() const { return progress->wait(ticket); }
  bool is_reached() const { return progress->has_reached(ticket); }
};

/// Waits for all points, and records that the host has waited for `clock`. Returns an error of an operation, or 0.
int wait_for_all(const std::vector<Reach>& all, const Clock& clock);

/// The operations of a stream. A thread of its own does them in order. Thread safety: all members may be called
/// concurrently.
class StreamWork {
 public:
  /// Returns 0, or the error that waiters for the stream get.
  using Work = std::function<int()>;

  StreamWork(const StreamWork&) = delete;
  StreamWork& operator=(const StreamWork&) = delete;

  /// Returns the end of all operations that were added so far.
  Reach reach() const;
  /// Waits for all operations that were added so far. Returns the first error of an operation, or 0.
  int synchronize();
  /// Waits that long at most. Returns whether the operations are done.
  bool synchronize_for(int milliseconds);
  bool is_idle() const;

  WindowOrder::Line line;  ///< the order that programs have requested for its operations

 protected:
  /// `delay_us`: the time before each operation. `room`: the number of operations at which add() waits; 0: never.
  StreamWork(int delay_us, std::size_t room) : delay_us_(delay_us), room_(room) {}
  virtual ~StreamWork() = default;

  void add(Work work);
  /// Deletes this object once its operations are done.
  void end();

 private:
  void run();

  const int delay_us_;
  const std::size_t room_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> queue_;
  std::uint64_t submitted_ = 0;
  bool has_thread_ = false;
  bool ending_ = false;
  std::shared_ptr<Progress> progress_ = std::make_shared<Progress>();
};

}  // namespace sim
