// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "device/backend.h"
#include "os/event_loop.h"
#include "os/fd.h"
#include "os/mutex.h"
#include "os/process_origin.h"
#include "os/process_watch.h"
#include "os/program_mark.h"
#include "share/format/process_name.h"

namespace onecopy {

/// The progress of a queue.
struct QueueProgress {
  std::uint64_t put;    ///< items ever put
  std::uint64_t taken;  ///< items ever taken

  bool operator==(const QueueProgress&) const = default;
};

/// The end that a queue had at one moment: at the first look after the mark was made or reset. Thread safety: as a
/// value.
class QueueMark {
 public:
  /// Returns whether all items have been taken that were put before the first look.
  bool is_passed_at(const QueueProgress& now) noexcept {
    if (!put_) put_ = now.put;
    return now.taken >= *put_;
  }
  void reset() noexcept { put_.reset(); }

 private:
  std::optional<std::uint64_t> put_;
};

/// A queue as the share layer sees it. Both functions are called on the watch thread, and must neither throw nor call
/// back.
struct QueueHooks {
  /// Returns the queue's progress, or nothing if the queue is closed.
  std::function<std::optional<QueueProgress>()> progress;
  /// Tells the queue's creator, at each change, how many other processes have the queue open.
  std::function<void(std::size_t users)> users;
  ProcessId creator{};
};

/// The queues that this process has open, by their numbers, which are random and the same in all processes.
///
/// Thread safety: all members may be called concurrently. Invariant: no hook is called once remove() has returned.
class LocalQueues {
 public:
  void add(std::uint64_t queue, QueueHooks hooks);
  /// Removes a queue. `is_over`: no process takes its items any longer, so all of them count as taken.
  void remove(std::uint64_t queue, bool is_over = false) noexcept;
  bool contains(std::uint64_t queue) const;
  /// Returns whether a queue that this process made is open.
  bool has_any_of(const ProcessId& creator) const noexcept;
  void report_users(std::uint64_t queue, std::size_t users) const noexcept;

  /// Drops each element of `marks` whose queue's head has passed its mark. `mark_of` returns a pointer to an element's
  /// mark, or null for an element that stays. Also drops elements of queues that are closed, or not open here, if
  /// `closed_is_passed`. Returns true while an element waits for its queue.
  template <class Element, class MarkOf>
  bool drop_passed(std::map<std::uint64_t, Element>& marks, bool closed_is_passed, MarkOf&& mark_of) const;

  // The fork handlers call the following members. A child keeps the queues of its parent.
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }

 private:
  std::optional<QueueProgress> progress(std::uint64_t queue) const;
  void note_over(std::uint64_t queue) noexcept REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::map<std::uint64_t, QueueHooks> queues_ GUARDED_BY(mutex_);
  /// The queues that are over, with the time of their end; kept as long as items of dead processes are waited for.
  std::map<std::uint64_t, std::chrono::steady_clock::time_point> over_ GUARDED_BY(mutex_);
};

template <class Element, class MarkOf>
bool LocalQueues::drop_passed(std::map<std::uint64_t, Element>& marks, bool closed_is_passed,
                              MarkOf&& mark_of) const {
  bool is_waiting = false;
  for (auto at = marks.begin(); at != marks.end();) {
    QueueMark* const mark = mark_of(at->second);
    bool is_passed = false;
    if (mark) {
      const auto now = progress(at->first);
      is_passed = now ? mark->is_passed_at(*now) : closed_is_passed;
      is_waiting = is_waiting || !is_passed;
    }
    at = is_passed ? marks.erase(at) : std::next(at);
  }
  return is_waiting;
}

/// A segment that a holder other than its owner gives to a third process.
struct HeldSegment {
  Fd table;  ///< the owner's block table
  ExportedMemory memory;
  bool owner_gone = false;
};

/// A process that has asked to retain a segment: a connection of our broker, or null for this process. The putter may
/// put more items of the segment without another request.
using Putter = const void*;

/// A putter's request. The putter releases all of its requests up to a number; a later request has a higher number.
struct RetainRequest {
  Putter putter = nullptr;
  std::uint64_t number = 0;
};

/// The descriptors of other processes' segments that this process retains, so that items in its queues can be opened
/// after the owner of the segment has died.
///
/// A segment is retained for a queue while its owner lives, or while a putter has not released it; after that, while an
/// item that was put earlier is still in the queue. A descriptor is never kept longer than the segment exists at its
/// owner.
///
/// A segment of a device may come with thousands of descriptors; at most kMaxOfDevices descriptors are kept in all, and
/// the first refusal is reported.
///
/// Thread safety: all members may be called concurrently.
class RetainedSegments {
 public:
  static constexpr std::size_t kMaxOfDevices = 256;  ///< descriptors

  explicit RetainedSegments(const LocalQueues& queues) noexcept : queues_(queues) {}

  /// Starts watching for the ends of owners. `due` is called, with a lock held, when sweep() may find something to
  /// drop. REQUIRES: nothing is retained yet.
  void watch(EventLoop& loop, Wakeup due) noexcept {
    loop_ = &loop;
    due_ = std::move(due);
  }

  enum class Added : std::uint8_t {
    yes,
    queue_is_closed,  ///< this process has closed the queue
    no_room,          ///< too many descriptors of memory of devices are kept
  };
  /// Retains a segment for `queue`. Without a request, the segment's owner has sent it. Throws unsupported if the
  /// system does not let this process watch the owner of memory of a device.
  Added add(const SegmentKey& key, const ProcessOrigin& origin, Fd table, ExportedMemory memory,
            std::uint64_t queue, std::optional<RetainRequest> request = {});
  std::optional<HeldSegment> open(const SegmentKey& key, Access access) const;
  /// Ends the requests of the putter up to this one.
  void release(const SegmentKey& key, const RetainRequest& last) noexcept;
  /// Ends all requests of a putter that has closed the queue, or has ended.
  void release_all_by(Putter putter, std::uint64_t queue) noexcept;
  void release_all_by(Putter putter) noexcept;
  /// Ends the requests of this process for segments of that owner.
  void release_all_of(const std::string& owner);
  /// Forgets a segment that its owner has given back.
  void forget(const SegmentKey& key) noexcept;
  /// Forgets a queue. REQUIRES: the queue has been removed from the LocalQueues.
  void forget_queue(std::uint64_t queue) noexcept;

  /// Drops segments that are no longer needed. Returns true if it must be called again, because an item is waited for.
  bool sweep() noexcept;
  std::size_t size() const;

  // The fork handlers call the following members. A child retains nothing.
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }
  void clear() noexcept NO_THREAD_SAFETY_ANALYSIS;

 private:
  /// The need of one queue for a segment.
  struct Use {
    std::map<Putter, std::uint64_t> requests;  ///< the number of the last request of each putter
    QueueMark end;  ///< the queue's end when the owner was first seen gone without a request
  };
  /// A process that owns segments; one object for all its segments.
  struct Owner {
    ProcessWatch process;  ///< empty if the process has ended or cannot be watched
    Fd table;
    std::uint64_t table_inode;

    bool has_process_ended() const noexcept { return !process || process.has_ended(); }
    bool has_program_ended() const noexcept { return !may_be_marked(table, table_inode); }
  };
  struct Entry {
    std::shared_ptr<Owner> owner;  ///< shared by all segments of the owner
    ExportedMemory memory;
    std::map<std::uint64_t, Use> queues;
    /// A use of a named file, whose name is removed with its last user.
    std::unique_ptr<DeviceMemory> user = {};

    /// Returns whether the owner no longer writes to the segment and to its table. A device may work for an ended
    /// program until the process ends.
    bool is_frozen() const noexcept;
  };

  bool has_room_for(const ExportedMemory& memory) const noexcept REQUIRES(mutex_);
  void report_refusal(const ProcessOrigin& origin) REQUIRES(mutex_);
  Entry make_entry(const SegmentKey& key, const ProcessOrigin& origin, Fd table, ExportedMemory memory)
      REQUIRES(mutex_);
  const Entry* another_of(const std::string& owner) const REQUIRES(mutex_);
  std::shared_ptr<Owner> watched(const ProcessOrigin& origin, Fd table, bool is_device_memory)
      REQUIRES(mutex_);
  void poll_soon() noexcept REQUIRES(mutex_);
  bool drop_passed(Entry& entry) REQUIRES(mutex_);
  static bool is_requested(const Entry& entry) noexcept;

  const LocalQueues& queues_;
  EventLoop* loop_ = nullptr;
  Wakeup due_;
  mutable Mutex mutex_;  ///< locked before the mutex of queues_
  std::map<SegmentKey, Entry> entries_ GUARDED_BY(mutex_);
  bool has_refused_ GUARDED_BY(mutex_) = false;
  /// The number of sweeps that are left to detect the end of a program: an owner's sockets are closed shortly before
  /// its mark is removed.
  int looks_ GUARDED_BY(mutex_) = 0;
};

}  // namespace onecopy
