// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "os/mutex.h"

namespace onecopy {

/// The address ranges that a thread unmaps, which ends when no range is left: the kernel takes 0.1 s to unmap 1 GiB of 4 KiB pages (two virtual
/// CPUs, November 2026). A forked child unmaps its copies of them at once, because it has no page tables of shared
/// memory yet.
///
/// Thread safety: all members may be called concurrently. Invariant: each range in the list is still mapped, and belongs
/// to the list.
class LateUnmaps {
 public:
  /// Returns the list of this process, which is never destroyed.
  static LateUnmaps& get();

  /// Unmaps a range soon, or at once if no thread can be started. Waits at most for one piece. REQUIRES: the caller has
  /// reserved the range, and does not use it afterwards.
  void add(std::byte* at, std::size_t bytes) noexcept;

  // The steps at a fork, between which the list stays locked.
  void prepare_fork() noexcept ACQUIRE(mutex_) { mutex_.lock(); }
  void end_fork() noexcept RELEASE(mutex_) { mutex_.unlock(); }
  void begin_in_child() noexcept RELEASE(mutex_);

 private:
  struct Range {
    std::byte* at;
    std::size_t bytes;
  };

  bool try_start() noexcept REQUIRES(mutex_);
  bool unmap_piece() noexcept;

  Mutex mutex_;
  std::vector<Range> ranges_ GUARDED_BY(mutex_);
  bool has_thread_ GUARDED_BY(mutex_) = false;
};

}  // namespace onecopy
