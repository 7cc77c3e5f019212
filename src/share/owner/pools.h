// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
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

/// The pools of a process: one for each kind of segment on each device, made at first use and kept.
///
/// Thread safety: all members may be called concurrently, except the members about fork. A thread locks `trimming_`
/// before `mutex_`. Giving memory back takes milliseconds, so it does not hold `mutex_`, which allocations need.
class Pools {
 public:
  static constexpr std::uint64_t kAtOnce = std::uint64_t{32} << 20;
  /// The time between two searches for memory that has been idle for long.
  static constexpr std::chrono::milliseconds kPause{100};

  /// Constructs an empty set of pools. `idle` is called when memory begins to wait for trim(), see Pool::on_idle.
  Pools(const std::string& owner, SegmentTable& segments, Wakeup idle = {})
      : owner_(owner), segments_(segments), idle_(std::move(idle)) {}

  Pool& of(SegmentKind kind, Device device);
  std::uint64_t live_bytes() const;

  /// Gives back about kAtOnce bytes of each pool, and not more, because borrowers wait for answers during a trim and a
  /// fork waits for the thread. `bytes` of the result is the largest amount of a pool.
  Pool::TrimResult trim();
  /// Gives all idle memory back at once, of one device or of all. Returns how many bytes.
  std::uint64_t trim_all(std::optional<Device> device = {});
  /// Calls Pool::look_again() of all pools, after which memory waits for trim().
  void look_again();
  /// Destroys the pools of that kind. REQUIRES: no block is in use.
  void end(SegmentKind kind);

  // The fork handlers call the following members.
  void lock() ACQUIRE(mutex_);
  void unlock() RELEASE(mutex_);
  /// Calls Pool::abandon() of all pools.
  void abandon() noexcept NO_THREAD_SAFETY_ANALYSIS;

 private:
  using ByPlace = std::map<std::pair<SegmentKind, Device>, std::unique_ptr<Pool>>;

  /// Returns the pools, which are not destroyed while trimming_ is held.
  std::vector<Pool*> all(std::optional<Device> device = {}) const REQUIRES(trimming_) EXCLUDES(mutex_);

  const std::string& owner_;
  SegmentTable& segments_;
  const Wakeup idle_;
  Mutex trimming_;  ///< held while memory is given back
  mutable Mutex mutex_;
  ByPlace pools_ GUARDED_BY(mutex_);
  /// The pool of the last allocation, which is found without the lock.
  std::atomic<const ByPlace::value_type*> last_{nullptr};
};

/// Keeps the former memory of a framework's storage for a while after it was exchanged for shared memory, because a
/// thread may be in the middle of a computation that reads the memory. Then returns what malloc has free to the system.
///
/// Memory that the user shared is kept for a second; if much of the machine's free memory is kept, the oldest is dropped
/// earlier. Memory of items that pass through queues is kept for half a second, and dropped earlier if kMaxOfItems
/// bytes went after it: otherwise a busy producer would have a second of its traffic as private memory.
///
/// Thread safety: all members may be called concurrently, except the members about fork. Memory is released without locks,
/// by the thread that keeps more or by the watch thread.
class FormerMemory {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Use : std::uint8_t { shared, item };
  static constexpr std::chrono::milliseconds kKept{1000}, kKeptOfItems{500};
  static constexpr std::uint64_t kMaxOfItems = std::uint64_t{32} << 20;
  /// The time between the last release and the return of free memory to the system.
  static constexpr std::chrono::milliseconds kTrimAfter{100};

  explicit FormerMemory(EventLoop& loop) : timer_(loop, [this] { return expire(Clock::now()); }) {}

  /// Keeps `memory`, of `bytes` bytes. Dropping it must neither throw nor wait. Throws bad_alloc, after which `memory`
  /// was dropped.
  void keep(std::shared_ptr<const void> memory, std::uint64_t bytes, Use use,
            Clock::time_point now = Clock::now());
  /// Drops memory that was kept long enough. Returns when to look again.
  Timer::Pause expire(Clock::time_point now) noexcept;
  std::uint64_t bytes() const noexcept {
    const LockGuard lock(mutex_);
    return kept_[0].bytes + kept_[1].bytes;
  }

  // The fork handlers call the following members. A child has no thread that reads its parent's memory.
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }
  void clear() noexcept;

 private:
  struct Entry {
    std::shared_ptr<const void> memory;
    std::uint64_t bytes;
    Clock::time_point until;
  };
  using Entries = std::list<Entry>;
  struct Kept {
    Entries entries;  ///< the oldest first
    std::uint64_t bytes = 0;
  };

  Entries take_above(Use use, std::uint64_t most);
  static void take_oldest(Kept& kept, Entries& taken) noexcept;
  /// Drops `taken` without a lock and counts the bytes afterwards. Returns whether the heap is worth a trim.
  bool release(Entries taken) noexcept EXCLUDES(mutex_);

  mutable Mutex mutex_;
  std::array<Kept, 2> kept_ GUARDED_BY(mutex_);    ///< by Use
  std::uint64_t released_ GUARDED_BY(mutex_) = 0;  ///< the bytes since the last trim
  Timer timer_;
};

}  // namespace onecopy
