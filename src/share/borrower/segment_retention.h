// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "onecopy/share/handle_fields.h"
#include "os/mutex.h"
#include "share/borrower/retained_segments.h"
#include "share/format/process_name.h"

namespace onecopy {

/// A notice that a keeper no longer needs to retain a segment for requests of this process up to `number`.
struct Release {
  SegmentKey segment;
  ProcessId keeper{};
  std::uint64_t number = 0;
};

/// The segments that other processes, their keepers, retain for this one. Also queues notices for keepers: a segment
/// has ended at its owner, or this process no longer needs it.
///
/// Thread safety: all members may be called concurrently. on_news is set before, and called without locks.
class RetainedElsewhere {
 public:
  /// Runs when there are notices to send.
  std::function<void()> on_news;

  /// Notes a request to `keeper` to retain the segment. Returns the request's number, which is higher than all earlier
  /// ones.
  std::uint64_t add(const SegmentKey& segment, const ProcessId& keeper);
  /// Forgets a segment that its owner has given back. After a bad_alloc the caller must call retire() again.
  void retire(const SegmentKey& segment);
  /// Does what retire() does, but returns true instead of calling on_news.
  bool note_retired(const SegmentKey& segment);
  /// Releases what others retain for this process, which holds no block of that owner. After a bad_alloc the caller must
  /// call it again.
  void release_all_of(const std::string& owner);

  /// Returns whether that process was asked to retain a segment.
  bool has_keeper(const ProcessId& process) const noexcept;
  /// Removes and returns the segments that have ended, each with its keepers.
  std::map<SegmentKey, std::set<ProcessId>> take_retired() noexcept;
  std::vector<Release> take_releases() noexcept;
  /// Queues a notice for a keeper that could not be told.
  void release_later(Release again);

  // The fork handlers call the following members. Keepers retain nothing for a child.
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }
  void clear() noexcept NO_THREAD_SAFETY_ANALYSIS;

 private:
  mutable Mutex mutex_;
  /// The keepers, each with the number of our last request.
  std::map<SegmentKey, std::map<ProcessId, std::uint64_t>> keepers_ GUARDED_BY(mutex_);
  std::uint64_t last_number_ GUARDED_BY(mutex_) = 0;
  std::vector<Release> releases_ GUARDED_BY(mutex_);
  std::map<SegmentKey, std::set<ProcessId>> retired_ GUARDED_BY(mutex_);
};

/// The objects by which items in queues outlive the owners of their segments: the queues of this process, the segments
/// that it retains for them, and the segments that other processes retain for it. Thread safety: as its parts.
struct SegmentRetention {
  LocalQueues queues;
  RetainedSegments segments{queues};
  RetainedElsewhere elsewhere;

  /// Forgets a segment that its owner has given back, so that no item in a queue lies in the segment. After a bad_alloc
  /// the caller must call retire() again.
  void retire(const SegmentKey& segment) {
    segments.forget(segment);
    elsewhere.retire(segment);
  }
  /// Releases what others retain for this process, which holds no block of that owner. After a bad_alloc the caller must
  /// call it again.
  void release_all_of(const std::string& owner) {
    segments.release_all_of(owner);
    elsewhere.release_all_of(owner);
  }

  /// Returns whether items in a queue of that process, which is open here, may outlive this process by what that process
  /// retains.
  bool relies_on(const ProcessId& creator) const noexcept {
    return queues.has_any_of(creator) && elsewhere.has_keeper(creator);
  }

  void remove_queue(std::uint64_t queue, bool is_over = false) noexcept {
    queues.remove(queue, is_over);
    segments.forget_queue(queue);
  }

  // The fork handlers call the following members. A child keeps the queues, and retains nothing.
  void lock() NO_THREAD_SAFETY_ANALYSIS {
    segments.lock();
    queues.lock();
    elsewhere.lock();
  }
  void unlock() NO_THREAD_SAFETY_ANALYSIS {
    elsewhere.unlock();
    queues.unlock();
    segments.unlock();
  }
  void clear() noexcept {
    segments.clear();
    elsewhere.clear();
  }
};

}  // namespace onecopy
