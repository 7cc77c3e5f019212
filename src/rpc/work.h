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
    service,       ///< call Node::serve(): a part of reading messages that may wait for another process
    note,          ///< take a note of the user's
    answer,        ///< complete `done`: an answer that is handled in order
    settle,        ///< handle the outcome of `done`, for which no thread waits
    member_ended,  ///< the member has ended, and all its messages were read
  };
  Kind kind = Kind::none;
  bool is_in_order = false;  ///< end_order() lets the next work in order begin
  Status status = Status::value;
  Member* from = nullptr;
  FunctionEntry* function = nullptr;
  std::uint64_t call = 0;
  Deadline deadline = kForever;
  CallContext context;
  Message message;  ///< the message without its tail
  CallRef done;
};

/// The work that no thread has taken yet. Work in order is given out one at a time.
/// Thread safety: all members may be called concurrently.
class WorkQueue {
 public:
  void push(Work&& work);
  bool try_pop(Work& work);
  /// Takes work of kind service, if there is some.
  bool try_pop_service(Work& work);
  /// Begins the caller's work in order and returns true, unless other work in order comes before it.
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
  bool is_in_order_ GUARDED_BY(mutex_) = false;  ///< a worker is doing work in order
  std::atomic<std::size_t> ready_{0};
};

}  // namespace onecopy::rpc
