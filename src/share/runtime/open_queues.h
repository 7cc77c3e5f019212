// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "onecopy/memory/block.h"
#include "onecopy/share/handle_fields.h"
#include "onecopy/share/stats.h"
#include "os/event_loop.h"
#include "os/mutex.h"
#include "share/borrower/retained_segments.h"

namespace onecopy {

class Broker;
struct SegmentRetention;
class Peers;
class SegmentSource;
class Error;

/// Tells whether a queue's creator retains a segment, so that items outlive the segment's owner and their putter.
enum class Retention : std::uint8_t {
  retained,
  not_needed,    ///< the creator owns the segment, and other processes retain it
  not_retained,  ///< the creator is gone or refuses, or this process cannot pass the segment on
  pending,       ///< the creator is stopped, and retains the segment once it continues
  unreachable,   ///< the creator lives but cannot be reached
};

/// The queues that this process has open, and what other processes must be told about them. A queue is named by a
/// random number, which is the same in all processes.
///
/// Thread safety: all members may be called concurrently.
class OpenQueues {
 public:
  OpenQueues(const ProcessId& self, Peers& peers, SegmentSource& source, SegmentRetention& retention,
             Broker& broker, EventLoop& loop);

  /// Drops the backlogs of queues without users when memory is short. Returns false if there were none. Null until this
  /// process has used a queue.
  std::atomic<bool (*)() noexcept> on_shortage{nullptr};

  /// Registers a queue that `creator` made and that this process opens; `hooks` are called from now on. Returns false
  /// if the creator does not answer and must be told again. A creator that is gone need not be told.
  bool open(const ProcessId& creator, std::uint64_t queue, QueueHooks hooks);
  /// Unregisters a queue. `is_over`: no process takes its items any longer.
  void close(const ProcessId& creator, std::uint64_t queue, bool is_over = false) noexcept;

  /// Asks the creator to retain the segment before the first item with it is put. If this process is the creator, asks
  /// the other users. Waits at most two seconds for the creator. Throws what passing the segment on throws.
  Retention retain(const BlockRef& block, const ProcessId& creator, std::uint64_t queue);
  /// Returns whether the process let a question wait too long and has been silent since, as far as this process knows.
  bool is_silent(const ProcessId& process) const;
  /// Returns a flag that becomes true when the connection to that process ends; null if there is none.
  std::shared_ptr<const std::atomic<bool>> connection_end(const ProcessId& process) const;

  /// A queue's items in transit, for listings, and how many of their segments are not retained.
  struct Transit {
    std::function<TransitInfo()> info;
    std::function<std::uint64_t()> unkept;
  };
  std::uint64_t add_transit(Transit transit);
  void remove_transit(std::uint64_t id) noexcept;

  // The following members serve the runtime.
  void list_transits(std::vector<TransitInfo>& list) const;
  std::uint64_t unkept() const;

 private:
  /// A queue that this process has left while its creator did not read.
  struct LeftQueue {
    ProcessId creator;
    std::uint64_t queue;
    bool operator==(const LeftQueue&) const = default;
  };

  void join(const ProcessId& creator, std::uint64_t queue);
  void ask_to_retain(const BlockRef& block, const ProcessId& creator, std::uint64_t queue);
  void report_refusal(const Error& error) noexcept;
  Retention why_not_retained(const Error& error, const ProcessId& creator) const;
  /// Sends news that could not be sent before.
  Timer::Pause tell();
  bool flush_retirements();
  bool flush_releases();
  bool flush_left_queues() noexcept;

  const ProcessId self_;
  Peers& peers_;
  SegmentSource& source_;
  SegmentRetention& retention_;
  Broker& broker_;

  std::atomic<bool> has_reported_refusal_{false};

  Mutex left_mutex_;
  std::vector<LeftQueue> left_ GUARDED_BY(left_mutex_);

  mutable Mutex transits_mutex_;
  std::map<std::uint64_t, Transit> transits_ GUARDED_BY(transits_mutex_);
  std::uint64_t last_transit_ GUARDED_BY(transits_mutex_) = 0;
  Timer telling_;
};

}  // namespace onecopy
