// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <memory>

#include "os/event_loop.h"
#include "os/mutex.h"

namespace onecopy {

/// Keeps memory that was exchanged for shared memory under its users: the former memory of a framework's storage. A thread may
/// be in the middle of a computation that reads the former memory, so that memory is kept for a second. If that is much
/// of what the machine has left, the oldest memory goes earlier.
///
/// Thread safety: all members may be called concurrently, but for those about fork. Memory is released without locks,
/// by the thread that keeps more or by the watch thread.
class FormerMemory {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kKept{1};

  explicit FormerMemory(EventLoop& loop) : timer_(loop, [this] { return expire(Clock::now()); }) {}

  /// Keeps `memory` of so many bytes for kKept. Dropping it must not throw nor wait. Throws bad_alloc: then it is gone.
  void keep(std::shared_ptr<const void> memory, std::uint64_t bytes, Clock::time_point now = Clock::now());
  /// Releases memory whose time is over. Returns when to look again.
  Timer::Pause expire(Clock::time_point now) noexcept;
  std::uint64_t bytes() const noexcept {
    const LockGuard lock(mutex_);
    return bytes_;
  }

  // Around a fork. A child has no thread that reads its parent's memory.
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }
  void clear() noexcept;

 private:
  struct Entry {
    std::shared_ptr<const void> memory;
    std::uint64_t bytes;
    Clock::time_point since;
  };
  using Entries = std::list<Entry>;

  Entries take_above(std::uint64_t most);

  mutable Mutex mutex_;
  Entries entries_ GUARDED_BY(mutex_);  ///< the oldest first
  std::uint64_t bytes_ GUARDED_BY(mutex_) = 0;
  Timer timer_;
};

}  // namespace onecopy
