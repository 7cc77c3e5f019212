// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "os/mutex.h"
#include "rpc/call.h"

namespace onecopy::rpc {

/// The calls of this process that have no answer yet, by the number that their answers name.
///
/// Thread safety: all members may be called concurrently. Invariant: no number is used twice, so an answer that comes
/// too late finds no call.
class Calls {
 public:
  /// Adds the call and returns its number, which is never 0.
  std::uint64_t add(const CallRef& call);
  /// Returns the call of that number, or null if the call is over.
  CallRef find(std::uint64_t number);
  /// Removes the call of that number and returns it, or null if the call is over or was not made to `member`.
  CallRef take(std::uint64_t number, std::optional<std::uint32_t> member = {});
  /// Removes and returns the calls whose deadline has passed. Costs one load if no deadline has passed.
  std::vector<CallRef> take_late(TimePoint now);
  std::vector<CallRef> take_of(std::uint32_t member, std::uint32_t session);
  std::vector<CallRef> take_all();

  /// Returns how many calls are under way to each member.
  std::map<std::uint32_t, std::size_t> by_member() const;

  /// Returns a time before which no deadline passes.
  Deadline next_deadline() const noexcept {
    return TimePoint(TimePoint::duration(next_deadline_.load(std::memory_order_relaxed)));
  }
  std::size_t count() const noexcept { return count_.load(std::memory_order_relaxed); }

 private:
  struct Slot {
    std::uint64_t number = 0;
    CallRef call;
  };
  static constexpr int kIndexBits = 24;

  template <class Wants>
  std::vector<CallRef> take_if(Wants&& wants);
  CallRef take_out(std::size_t index) REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::vector<Slot> slots_ GUARDED_BY(mutex_);
  std::vector<std::uint32_t> free_ GUARDED_BY(mutex_);
  std::uint64_t last_ GUARDED_BY(mutex_) = 0;
  std::atomic<std::size_t> count_{0};
  std::atomic<std::int64_t> next_deadline_{kForever.at().time_since_epoch().count()};
};

}  // namespace onecopy::rpc
