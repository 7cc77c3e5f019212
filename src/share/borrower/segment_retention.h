// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "share/borrower/local_queues.h"
#include "share/borrower/retained_elsewhere.h"
#include "share/borrower/retained_segments.h"

namespace onecopy {

/// How items in queues outlive the owners of their segments: the queues of this process, the segments that it retains
/// for them, and those that other processes retain for it. Thread safety: as its parts.
struct SegmentRetention {
  LocalQueues queues;
  RetainedSegments segments{queues};
  RetainedElsewhere elsewhere;

  /// The owner has given the segment back, so no item in a queue lies in it. Call it again after a bad_alloc.
  void retire(const SegmentKey& segment) {
    segments.forget(segment);
    elsewhere.retire(segment);
  }
  /// This process holds no block of that owner's any more.
  void release_all_of(const std::string& owner) noexcept {
    segments.release_all_of(owner);
    elsewhere.release_all_of(owner);
  }

  void remove_queue(std::uint64_t queue, bool is_over = false) noexcept {
    queues.remove(queue, is_over);
    segments.forget_queue(queue);
  }

  // Around a fork. A child keeps the queues, and retains nothing.
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
