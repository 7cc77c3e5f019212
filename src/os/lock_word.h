// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

#include "core/point.h"

namespace onecopy {

/// The word of a lock between processes, and the steps on it. tests/explorer runs this code through its interleavings.
///
///   bits 0..29   thread id of the holder; 0 = free
///   bit 30       set by the kernel, which also clears the id, when the holder died
///   bit 31       set while threads may be asleep on the word
///   bits 32..63  generation: incremented each time the lock is taken
///
/// A thread announces the word to the kernel before it touches the word, and until it is done (Thread::begin, end). If
/// the thread dies in between, the kernel frees the word and wakes a sleeper. The announcement lies in the thread's own
/// memory: no pointer is ever read from the memory around the shared word.
///
/// A second mechanism covers a holder whose announcement was lost. A sleeper that was not woken for a whole slice
/// checks whether the holder exists, and takes the lock over if not. The generation makes this safe: the exchange
/// succeeds only for the word that was checked, so two sleepers that do this at once, or a later thread with the dead
/// thread's id, cannot be confused.
///
/// P names the machine: Word (a 64-bit atomic), Thread, wait(), wake_one(), exists().
template <class P>
class LockWord {
 public:
  using Thread = typename P::Thread;
  using Nanoseconds = std::chrono::nanoseconds;
  static constexpr std::uint32_t kHolder = 0x3fffffff;  ///< the bits of the holder

  bool try_lock(Thread& me) noexcept {
    std::uint64_t seen = word_.load();
    if (!is_free(seen)) return false;
    me.begin(&word_);
    point("lock.begun");
    if (try_take(seen, me.id())) return true;
    me.end(&word_);
    return false;
  }

  /// Sleeps for up to slice() at a time until the lock is free or its holder dead. Returns false once slice() returns
  /// 0.
  template <class Slice>
  bool lock(Thread& me, Slice&& slice) noexcept {
    me.begin(&word_);
    const bool locked = wait_and_take(me, slice);
    if (!locked) me.end(&word_);
    return locked;
  }

  /// Releases the lock. REQUIRES: `me` holds it.
  void unlock(Thread& me) noexcept {
    const std::uint64_t before = word_.exchange(freed(word_.load()));
    point("lock.released");
    if ((before & kWaiters) != 0) P::wake_one(word_);
    me.end(&word_);
  }

  /// Returns the thread id of the holder, or 0 if the lock is free.
  std::uint32_t holder() const noexcept { return static_cast<std::uint32_t>(word_.load() & kHolder); }

  /// Returns the holder and the generation, which differ each time the lock is taken.
  std::uint64_t turn() const noexcept { return word_.load() & ~kWaiters; }

 private:
  static constexpr std::uint64_t kWaiters = 0x80000000;
  static constexpr std::uint64_t kGeneration = std::uint64_t{1} << 32;

  static bool is_free(std::uint64_t word) noexcept { return (word & kHolder) == 0; }
  static std::uint64_t freed(std::uint64_t word) noexcept { return word & ~(kGeneration - 1); }
  static std::uint64_t taken(std::uint64_t word, std::uint64_t holder) noexcept {
    return (freed(word) + kGeneration) | (word & kWaiters) | holder;
  }

  /// Takes the word if it is free. `holder` may include kWaiters. Returns false, with the word in `seen`, if another
  /// thread holds it.
  bool try_take(std::uint64_t& seen, std::uint64_t holder) noexcept {
    while (is_free(seen))
      if (word_.compare_exchange_strong(seen, taken(seen, holder))) return true;
    return false;
  }

  /// Waits and takes the lock. After a sleep the lock is taken with kWaiters, because more threads may be asleep and
  /// this thread has consumed their wake.
  template <class Slice>
  bool wait_and_take(Thread& me, Slice& slice) noexcept {
    std::uint64_t holder = me.id();
    std::uint64_t seen = word_.load();
    for (;;) {
      if (try_take(seen, holder)) return true;
      if ((seen & kWaiters) == 0 && !word_.compare_exchange_strong(seen, seen | kWaiters)) continue;
      seen |= kWaiters;
      const Nanoseconds longest = slice();
      if (longest <= Nanoseconds{0}) return false;
      holder = me.id() | kWaiters;
      const bool was_woken = P::wait(me, word_, static_cast<std::uint32_t>(seen), longest);
      point("lock.slept");
      if (!was_woken && try_inherit(seen, holder)) return true;
      seen = word_.load();
    }
  }

  bool try_inherit(std::uint64_t seen, std::uint64_t holder) noexcept {
    if (P::exists(static_cast<std::uint32_t>(seen & kHolder))) return false;
    point("lock.nobody");
    return word_.compare_exchange_strong(seen, taken(seen, holder));
  }

  typename P::Word word_{};
};

}  // namespace onecopy
