// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>

namespace sim {

/// The number of operations of each stream, by the stream's number, that come before a point. Moves forward only.
using Clock = std::map<std::uint64_t, std::uint64_t>;

inline void merge(Clock& into, const Clock& from) {
  for (const auto& [stream, operations] : from) {
    std::uint64_t& known = into[stream];
    if (known < operations) known = operations;
  }
}

/// Finds uses of one page through two windows (addresses) that have no order between them, one of which writes: on a
/// device the later one need not see the writes of the earlier one. Order is made by programs, through streams, events
/// and waits of the host, whatever the simulator's threads happen to do. Work that a thread of the host has waited for
/// comes before all that is submitted afterwards.
///
/// Thread safety: all members may be called concurrently.
class WindowOrder {
 public:
  /// A stream and its clock.
  struct Line {
    std::uint64_t number = 0;
    Clock clock{};
  };

  static WindowOrder& instance() {
    static WindowOrder& order = *new WindowOrder;
    return order;
  }

  void begin(Line& stream) {
    const std::lock_guard lock(mutex_);
    stream.number = ++last_;
  }
  /// The next operation of the stream, which comes after `others`.
  void submit(Line& stream, const Clock& others = {}) {
    const std::lock_guard lock(mutex_);
    merge(stream.clock, host_);
    merge(stream.clock, others);
    ++stream.clock[stream.number];
  }
  Clock clock_of(const Line& stream) {
    const std::lock_guard lock(mutex_);
    return stream.clock;
  }
  /// Clocks of events belong to them, and are touched here alone: several threads may use one event.
  void record(const Line& stream, Clock& event) {
    const std::lock_guard lock(mutex_);
    event = stream.clock;
  }
  void record(Clock all, Clock& event) {
    const std::lock_guard lock(mutex_);
    event = std::move(all);
  }
  Clock copy_of(const Clock& event) {
    const std::lock_guard lock(mutex_);
    return event;
  }
  void let_wait(Line& stream, const Clock& event) {
    const std::lock_guard lock(mutex_);
    merge(stream.clock, event);
  }
  void host_waited(const Clock& clock) {
    const std::lock_guard lock(mutex_);
    merge(host_, clock);
  }

  /// The operation of the stream that is submitted next uses a page through the window at that address.
  void use(Line& stream, std::uint64_t memory, std::uint64_t page, std::uintptr_t window, bool writes) {
    const std::lock_guard lock(mutex_);
    merge(stream.clock, host_);
    auto& uses = uses_[{memory, page}];
    for (const auto& [who, operation] : uses) {
      const auto& [other_window, other_stream, wrote] = who;
      if (other_window == window || other_stream == stream.number || (!wrote && !writes)) continue;
      if (stream.clock[other_stream] >= operation) continue;
      ++count_;
      if (first_.empty())
        first_ = "page " + std::to_string(page) + " of memory " + std::to_string(memory) + ": stream " +
                 std::to_string(stream.number) + " uses it at another address than stream " +
                 std::to_string(other_stream) + ", and does not wait for that";
    }
    uses[{window, stream.number, writes}] = stream.clock[stream.number] + 1;
  }

  std::size_t count() {
    const std::lock_guard lock(mutex_);
    return count_;
  }
  const char* first() {
    const std::lock_guard lock(mutex_);
    return first_.c_str();
  }

 private:
  using Page = std::pair<std::uint64_t, std::uint64_t>;
  using Who = std::tuple<std::uintptr_t, std::uint64_t, bool>;  ///< window, stream, whether it wrote

  std::mutex mutex_;
  std::uint64_t last_ = 0;
  Clock host_;                                         ///< all that a thread has waited for
  std::map<Page, std::map<Who, std::uint64_t>> uses_;  ///< the last operation of each kind
  std::size_t count_ = 0;
  std::string first_;
};

}  // namespace sim
