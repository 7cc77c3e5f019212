// SPDX-License-Identifier: Apache-2.0
#pragma once

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
#include "os/program_mark.h"
#include "share/borrower/local_queues.h"
#include "share/format/segment_ref.h"

namespace onecopy {

/// A segment as a holder other than its owner hands it out.
struct HeldSegment {
  Fd table;  ///< the owner's block table
  ExportedMemory memory;
  bool owner_gone = false;
};

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

  enum class Added : std::uint8_t {
    yes,
    queue_is_closed,  ///< here
    no_room,          ///< for the descriptors of a device's memory
  };
  /// Retains a segment for `queue`. Without a request it comes from its owner. Throws unsupported if the system does not
  /// let this process watch the owner of a device's memory.
  Added add(const SegmentKey& key, const ProcessOrigin& origin, Fd table, ExportedMemory memory,
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

  /// Drops segments that nobody needs. Returns true while more looks are due: an item is waited for.
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
  /// The process that owns segments: one for all of them.
  struct Owner {
    Fd pidfd;  ///< empty for a process that has ended, or that cannot be watched
    Fd table;
    std::uint64_t table_inode;
    EventLoop* loop;  ///< that watches the pidfd; null if none does

    ~Owner() {
      if (loop && pidfd) loop->remove(pidfd.get());
    }

    bool has_process_ended() const noexcept { return !pidfd || has_exited(pidfd); }
    bool has_program_ended() const noexcept { return !may_be_marked(table, table_inode); }
  };
  struct Entry {
    std::shared_ptr<Owner> owner;  ///< shared by all segments of the owner
    ExportedMemory memory;
    std::map<std::uint64_t, Use> queues;
    /// Of a named file: removes the name with its last user. Without this user the name would go.
    std::unique_ptr<DeviceMemory> user = {};

    /// Has its owner stopped writing to it, and to its table? A device may be at work for a program that has
    /// ended until its process ends.
    bool is_frozen() const noexcept;
  };

  bool has_room_for(const ExportedMemory& memory) const noexcept REQUIRES(mutex_);
  void report_refusal(const ProcessOrigin& origin) REQUIRES(mutex_);
  Entry make_entry(const SegmentKey& key, const ProcessOrigin& origin, Fd table, ExportedMemory memory)
      REQUIRES(mutex_);
  const Entry* another_of(const std::string& owner) const REQUIRES(mutex_);
  std::shared_ptr<Owner> watched(const ProcessOrigin& origin, Fd table, bool is_device_memory)
      REQUIRES(mutex_);
  void look_soon() noexcept REQUIRES(mutex_);
  bool drop_passed(Entry& entry) REQUIRES(mutex_);
  static bool is_requested(const Entry& entry) noexcept;

  const LocalQueues& queues_;
  EventLoop* loop_ = nullptr;
  Wakeup due_;
  mutable Mutex mutex_;  ///< taken before that of queues_
  std::map<SegmentKey, Entry> entries_ GUARDED_BY(mutex_);
  bool has_refused_ GUARDED_BY(mutex_) = false;
  /// Sweeps that are left to see the end of a program. Its sockets close a moment before its mark goes.
  int looks_ GUARDED_BY(mutex_) = 0;
};

}  // namespace onecopy
