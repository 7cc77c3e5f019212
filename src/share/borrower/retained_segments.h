// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "device/backend.h"
#include "os/event_loop.h"
#include "os/fd.h"
#include "os/mutex.h"
#include "os/process.h"
#include "os/process_origin.h"
#include "share/borrower/held_segment.h"
#include "share/borrower/local_queues.h"
#include "share/borrower/segment_key.h"

namespace onecopy {

/// A process that asked for a segment to be retained: a connection of our broker's, or null for this process. It may
/// put more items of the segment without another request.
using Putter = const void*;

/// A putter's request. The putter releases all of its requests up to a number; one made meanwhile has a higher one.
struct RetainRequest {
  Putter putter = nullptr;
  std::uint64_t number = 0;
};

/// Descriptors of other processes' segments, retained so that items in our queues can be opened after the segment's
/// owner has died.
///
/// A segment is retained for a queue while its owner lives, or while a putter has not released it. After both it is
/// retained while an item put before that is still in the queue. It never outlives the segment at its owner.
///
/// A segment of a device may come with thousands of descriptors; at most kMostOfDevices of those are kept in all, and
/// the first refusal is reported.
///
/// Thread safety: all members may be called concurrently.
class RetainedSegments {
 public:
  static constexpr std::size_t kMostOfDevices = 256;  ///< descriptors

  explicit RetainedSegments(const LocalQueues& queues) noexcept : queues_(queues) {}

  /// The ends of owners are noticed from here on, and `due` is called, with a lock, when sweep() may find something to
  /// drop. REQUIRES: nothing is retained yet.
  void watch(EventLoop& loop, Wakeup due) noexcept {
    loop_ = &loop;
    due_ = std::move(due);
  }

  /// Retains a segment for `queue`. Without a request it comes from its owner. Returns false if it is not retained: the
  /// queue is not open here, or the descriptors are too many.
  bool add(const SegmentKey& key, const ProcessOrigin& origin, Fd table, ExportedMemory memory,
           std::uint64_t queue, std::optional<RetainRequest> request = {});
  std::optional<HeldSegment> open(const SegmentKey& key, Access access) const;
  /// Ends the putter's requests up to this one.
  void release(const SegmentKey& key, const RetainRequest& last) noexcept;
  /// The putter has closed the queue; or has ended.
  void release_all_by(Putter putter, std::uint64_t queue) noexcept;
  void release_all_by(Putter putter) noexcept;
  /// Ends the requests of this process for segments of that owner.
  void release_all_of(const std::string& owner) noexcept;
  /// The owner has given the segment back.
  void forget(const SegmentKey& key) noexcept;
  /// REQUIRES: the queue has been removed from the LocalQueues.
  void forget_queue(std::uint64_t queue) noexcept;

  /// Drops segments that are not needed any more. Returns true while more looks are due: an item is waited for.
  bool sweep() noexcept;
  std::size_t size() const;

  // Around a fork; a child retains nothing.
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }
  void clear() noexcept NO_THREAD_SAFETY_ANALYSIS;

 private:
  /// One queue's need of a segment.
  struct Use {
    std::map<Putter, std::uint64_t> requests;  ///< with the number of each putter's last
    QueueMark end;  ///< of the queue, when the owner was first seen gone with no request left
  };
  /// One for all segments of an owner.
  struct Owner {
    Fd pidfd;
    int pid;
    std::uint64_t table_inode;
    EventLoop* loop;        ///< that watches the pidfd; null if none does
    bool has_left = false;  ///< its program has ended, although its process lives

    ~Owner() {
      if (loop && pidfd) loop->remove(pidfd.get());
    }

    bool is_gone() const noexcept { return !pidfd || has_exited(pidfd); }
    /// Reads /proc.
    bool look() noexcept;
  };
  struct Entry {
    std::shared_ptr<Owner> owner;     ///< shared by all segments of the owner
    std::shared_ptr<const Fd> table;  ///< shared likewise
    ExportedMemory memory;
    std::map<std::uint64_t, Use> queues;
    /// Of a named file: removes the name with its last user. Without this user the name would go.
    std::unique_ptr<DeviceMemory> user = {};
  };

  bool has_room_for(const ExportedMemory& memory) const noexcept REQUIRES(mutex_);
  void report_refusal(const ProcessOrigin& origin) REQUIRES(mutex_);
  Entry make_entry(const SegmentKey& key, const ProcessOrigin& origin, Fd table, ExportedMemory memory)
      REQUIRES(mutex_);
  const Entry* another_of(const std::string& owner) const REQUIRES(mutex_);
  std::shared_ptr<Owner> watched(const ProcessOrigin& origin, const Fd& table) REQUIRES(mutex_);
  void look_soon() noexcept REQUIRES(mutex_);
  bool drop_passed(Entry& entry) REQUIRES(mutex_);
  static bool is_requested(const Entry& entry) noexcept;

  const LocalQueues& queues_;
  EventLoop* loop_ = nullptr;
  Wakeup due_;
  mutable Mutex mutex_;  ///< taken before that of queues_
  std::map<SegmentKey, Entry> entries_ GUARDED_BY(mutex_);
  bool has_refused_ GUARDED_BY(mutex_) = false;
  /// When live owners are looked at again: a process may have become another program.
  std::chrono::steady_clock::time_point next_look_ GUARDED_BY(mutex_){};
};

}  // namespace onecopy
