// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>

#include "os/mutex.h"
#include "rpc/member.h"

namespace onecopy::rpc {

/// A task for a worker.
struct Work {
  enum class Kind : std::uint8_t {
    none,
    call,          ///< run a function
    greeting,      ///< for Node::take_greetings()
    note,          ///< a user's note
    answer,        ///< to `done`, which this process's worker has to complete: it is handled in order
    settle,        ///< `done` is done, and no thread waits for it
    member_ended,  ///< behind all that it had put
  };
  Kind kind = Kind::none;
  bool is_in_order = false;  ///< end_order() lets the next such work begin
  Status status = Status::value;
  Member* from = nullptr;
  FunctionEntry* function = nullptr;
  std::uint64_t call = 0;
  Deadline deadline = kForever;
  CallContext context;
  Message message;  ///< without its tail
  CallRef done;
};

/// The work that no thread has taken yet. Work in order is given out one at a time.
/// Thread safety: all members may be called concurrently.
class WorkQueue {
 public:
  void push(Work&& work);
  bool try_pop(Work& work);
  /// Takes a greeting alone.
  bool try_pop_greeting(Work& work);
  /// Returns true if no work in order is before the caller's, which begins now.
  bool try_begin_order();
  void end_order() noexcept;
  bool is_ready() const noexcept { return ready_.load() != 0; }
  std::size_t ready() const noexcept { return ready_.load(); }

 private:
  void count_ready() noexcept REQUIRES(mutex_) {
    ready_.store(works_.size() + (is_in_order_ || ordered_.empty() ? 0 : 1));
  }

  Mutex mutex_;
  std::deque<Work> works_ GUARDED_BY(mutex_);
  std::deque<Work> ordered_ GUARDED_BY(mutex_);
  bool is_in_order_ GUARDED_BY(mutex_) = false;  ///< a worker has one of ordered_
  std::atomic<std::size_t> ready_{0};
};

}  // namespace onecopy::rpc
