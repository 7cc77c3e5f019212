// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "memory/pool.h"
#include "os/event_loop.h"
#include "os/mutex.h"

namespace onecopy {

/// A process's pools: one for each kind of segment on each device, made at first use, and kept.
///
/// Thread safety: all members may be called concurrently, except the members about fork. A thread locks `trimming_`
/// before `mutex_`. Giving memory back takes milliseconds, and is done without `mutex_`, which allocations need.
class Pools {
 public:
  static constexpr std::uint64_t kAtOnce = std::uint64_t{32} << 20;
  /// The time between looks for memory that has been idle for long.
  static constexpr std::chrono::milliseconds kPause{100};

  /// `idle` is called when memory begins to wait for trim(), see Pool::on_idle.
  Pools(const std::string& owner, SegmentTable& segments, Wakeup idle = {})
      : owner_(owner), segments_(segments), idle_(std::move(idle)) {}

  Pool& of(SegmentKind kind, Device device);
  std::uint64_t live_bytes() const;

  /// Trims little by little, about kAtOnce bytes of each pool: borrowers wait for answers during a trim, and a fork
  /// waits for the thread. `bytes` is the largest amount that any pool gave back.
  Pool::TrimResult trim();
  /// Gives back all at once, of one device or of all; returns how many bytes.
  std::uint64_t trim_all(std::optional<Device> device = {});
  /// Calls Pool::look_again(). Memory waits for trim() then.
  void look_again();
  /// Ends the pools of that kind. REQUIRES: no block is in use.
  void end(SegmentKind kind);

  // Called around a fork.
  void lock() ACQUIRE(mutex_);
  void unlock() RELEASE(mutex_);
  /// Calls Pool::abandon().
  void abandon() noexcept NO_THREAD_SAFETY_ANALYSIS;

 private:
  using ByPlace = std::map<std::pair<SegmentKind, Device>, std::unique_ptr<Pool>>;

  /// The pools, which do not end while trimming_ is held.
  std::vector<Pool*> all(std::optional<Device> device = {}) const REQUIRES(trimming_) EXCLUDES(mutex_);

  const std::string& owner_;
  SegmentTable& segments_;
  const Wakeup idle_;
  Mutex trimming_;  ///< held while memory is given back
  mutable Mutex mutex_;
  ByPlace pools_ GUARDED_BY(mutex_);
  std::atomic<const ByPlace::value_type*> last_{nullptr};  ///< asked for; found without the lock
};

/// Keeps memory that was exchanged for shared memory under its users: the former memory of a framework's storage. A thread may
/// be in the middle of a computation that reads the former memory, so that memory is kept for a second. If that is much
/// of what the machine has left, the oldest memory goes earlier.
///
/// Thread safety: all members may be called concurrently, except the members about fork. Memory is released without locks,
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

  // Called around a fork. A child has no thread that reads its parent's memory.
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
