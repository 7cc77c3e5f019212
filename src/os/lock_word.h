// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

#include "core/point.h"

namespace onecopy {

/// The word of a lock between processes, and each step on it. tests/explorer runs this code through its
/// interleavings.
///
///   bits 0..29   thread id of the holder; 0 = free
///   bit 30       the kernel's mark: the last holder died (it sets the id to 0 with it)
///   bit 31       threads may be asleep on the word
///   bits 32..63  generation: one more with each time that the lock is taken
///
/// A thread announces the word to the kernel before it touches it, and until it is done (Thread::begin, end). If it
/// dies in between, the kernel frees the word, and wakes a sleeper. The announcement lies in the thread's own memory:
/// no pointer is ever read from the shared word's neighbourhood.
///
/// A second net serves a holder whose announcement was lost. A sleeper that was not woken for a whole slice asks
/// whether the holder exists, and if not takes the lock over. The generation makes that exact: only the word that was
/// looked at is exchanged. So two sleepers that do this at once, or a later thread with the dead one's id, cannot be
/// confused.
///
/// P names the machine: Word (a 64-bit atomic), Thread, wait(), wake_one(), exists().
template <class P>
class LockWord {
 public:
  using Thread = typename P::Thread;
  using Nanoseconds = std::chrono::nanoseconds;

  bool try_lock(Thread& me) noexcept {
    std::uint64_t seen = word_.load();
    if (!is_free(seen)) return false;
    me.begin(&word_);
    point("lock.begun");
    if (try_take(seen, me.id())) return true;
    me.end(&word_);
    return false;
  }

  /// Sleeps up to slice() at a time until the lock is free or its holder dead. Returns false if slice() is 0.
  template <class Slice>
  bool lock(Thread& me, Slice&& slice) noexcept {
    me.begin(&word_);
    const bool locked = wait_and_take(me, slice);
    if (!locked) me.end(&word_);
    return locked;
  }

  /// REQUIRES: `me` holds it.
  void unlock(Thread& me) noexcept {
    const std::uint64_t before = word_.exchange(freed(word_.load()));
    point("lock.released");
    if ((before & kWaiters) != 0) P::wake_one(word_);
    me.end(&word_);
  }

  /// The thread id of the holder; 0 = free.
  std::uint32_t holder() const noexcept { return static_cast<std::uint32_t>(word_.load() & kHolder); }

 private:
  static constexpr std::uint64_t kHolder = 0x3fffffff;
  static constexpr std::uint64_t kWaiters = 0x80000000;
  static constexpr std::uint64_t kGeneration = std::uint64_t{1} << 32;

  static bool is_free(std::uint64_t word) noexcept { return (word & kHolder) == 0; }
  static std::uint64_t freed(std::uint64_t word) noexcept { return word & ~(kGeneration - 1); }
  static std::uint64_t taken(std::uint64_t word, std::uint64_t holder) noexcept {
    return (freed(word) + kGeneration) | (word & kWaiters) | holder;
  }

  /// `holder` may bring kWaiters with it. Returns false if another thread holds the word, which is then in `seen`.
  bool try_take(std::uint64_t& seen, std::uint64_t holder) noexcept {
    while (is_free(seen))
      if (word_.compare_exchange_strong(seen, taken(seen, holder))) return true;
    return false;
  }

  /// After a sleep the lock is taken with kWaiters: others may be asleep, and this wake was theirs too.
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
