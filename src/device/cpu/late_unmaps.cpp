// SPDX-License-Identifier: Apache-2.0
#include "late_unmaps.h"

#include <pthread.h>
#include <sys/mman.h>

#include <new>
#include <system_error>
#include <thread>

#include "os/blocked_signals.h"
#include "os/fork_hook.h"

namespace onecopy {

namespace {

/// The bytes that are unmapped in one step, in 0.1 ms: the kernel lets no other mapping of the process change meanwhile.
constexpr std::size_t kUnmapPiece = std::size_t{1} << 20;

// The fork happens between these calls, which the analysis cannot follow.
void lock_unmaps() NO_THREAD_SAFETY_ANALYSIS { LateUnmaps::get().prepare_fork(); }
void unlock_unmaps() NO_THREAD_SAFETY_ANALYSIS { LateUnmaps::get().end_fork(); }
void unmap_in_child() NO_THREAD_SAFETY_ANALYSIS { LateUnmaps::get().begin_in_child(); }

const ForkHook kUnmapsAtFork{ForkRank::leaves, {&lock_unmaps, &unlock_unmaps, &unmap_in_child}};

}  // namespace

LateUnmaps& LateUnmaps::get() {
  static LateUnmaps* const unmaps = new LateUnmaps;
  return *unmaps;
}

void LateUnmaps::add(std::byte* at, std::size_t bytes) noexcept {
  try {
    const LockGuard lock(mutex_);
    ranges_.push_back({at, bytes});
    if (has_thread_ || try_start()) return;
  } catch (const std::bad_alloc&) {
    ::munmap(at, bytes);
  }
  while (unmap_piece()) continue;
}

/// Starts the thread. Returns false if the system's limit of threads is reached.
bool LateUnmaps::try_start() noexcept {
  try {
    const BlockedSignals blocked;
    std::thread([this] {
      pthread_setname_np(pthread_self(), "onecopy-unmap");
      while (unmap_piece()) continue;
    }).detach();
    return has_thread_ = true;
  } catch (const std::system_error&) {
    return false;
  }
}

/// Unmaps the end of the last range. Returns false if there is none.
bool LateUnmaps::unmap_piece() noexcept {
  const LockGuard lock(mutex_);
  if (ranges_.empty()) return has_thread_ = false;
  Range& last = ranges_.back();
  const std::size_t piece = (last.bytes - 1) % kUnmapPiece + 1;
  last.bytes -= piece;
  ::munmap(last.at + last.bytes, piece);
  if (last.bytes == 0) ranges_.pop_back();
  return true;
}

void LateUnmaps::begin_in_child() noexcept {
  for (const Range& range : ranges_) ::munmap(range.at, range.bytes);
  ranges_.clear();
  has_thread_ = false;
  mutex_.unlock();
}

}  // namespace onecopy
