// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "os/robust_mutex.h"

/// The layout of a ring in shared memory. Item n lives in slot n % 1024 of the physical chunk directory[(n / 1024) %
/// max_chunks]. The item is there exactly if the slot's stamp is n + 1.
namespace onecopy {

inline constexpr std::uint64_t kRingMagic = 0x31676e6972'636fULL;  // "ocring1"
inline constexpr std::uint32_t kRingVersion = 3;
inline constexpr std::uint64_t kItemsPerChunk = 1024;
inline constexpr std::size_t kMaxItemBytes = 240;

/// An item of up to kMaxItemBytes. A put stores the stamp last, which is its commit.
struct RingSlot {
  std::atomic<std::uint64_t> stamp;  ///< position + 1 of the slot's item; storing it is the commit
  std::uint32_t size;
  std::uint32_t reserved;
  std::byte payload[kMaxItemBytes];
};
inline constexpr std::size_t kChunkBytes = kItemsPerChunk * sizeof(RingSlot);

/// A word in shared memory that threads sleep on.
///
/// The two low bits say whether a wake is worth a system call. The other bits change with every arming and every wake,
/// so that no thread falls asleep after a wake that it has missed. A sleeper arms, checks its condition again, and
/// sleeps; a waker commits, and wakes. Waiters are not counted: a count would drift when one of them is killed. Thread
/// safety: all members may be called concurrently. Zeroed memory is a word that no thread sleeps on.
struct WaitWord {
  enum State : std::uint32_t {
    deserted = 0,  ///< no thread listens
    asleep = 1,    ///< a thread may be asleep: a wake needs a system call
    awake = 2,     ///< a thread looks repeatedly without being woken: a wake does nothing
  };

  std::atomic<std::uint32_t> word;

  static State state_of(std::uint32_t value) noexcept { return static_cast<State>(value & kStates); }
  State state() const noexcept { return state_of(word.load()); }
  /// Returns the new value of the word.
  std::uint32_t set(State state) noexcept;
  /// Returns the value to sleep on.
  std::uint32_t arm() noexcept { return set(asleep); }
  /// Changes the state to deserted, unless the word has changed since it was `seen`.
  bool desert_from(std::uint32_t seen) noexcept {
    return word.compare_exchange_strong(seen, (seen & ~kStates) + kStep);
  }
  /// Wakes one sleeper if there may be any. Call it after the commit, with no lock held.
  void notify_one() noexcept {
    if (state() == asleep) wake_one();
  }
  void notify_all() noexcept;
  /// Wakes one sleeper and keeps the word armed, because more may sleep. If no thread slept on an armed word, returns
  /// the word's value for desert_from(), otherwise 0.
  std::uint32_t try_wake() noexcept;

 private:
  static constexpr std::uint32_t kStates = 3;
  static constexpr std::uint32_t kStep = 4;

  void wake_one() noexcept;
};

/// Producers write the first line; consumers write the second.
struct alignas(128) RingProducers {
  RobustMutex mutex;
  std::atomic<std::uint64_t> tail;    ///< items ever put; behind by one while a commit is under way
  std::atomic<std::uint64_t> intent;  ///< tail + 1 from just before the commit until tail follows
};
/// The consumers' line: their lock, and the head, whose store is the commit of a get.
struct alignas(128) RingConsumers {
  RobustMutex mutex;
  std::atomic<std::uint64_t> head;  ///< items ever taken
};

/// The first page of a ring. The maker writes the plain members once, before others see them.
struct RingHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t max_chunks;  ///< a power of two
  std::uint64_t max_items;   ///< 0 = as many as memory allows
  std::atomic<std::uint32_t> closed;
  std::atomic<std::uint32_t> users;  ///< processes and threads at work on the ring; 0 = unknown
  /// The maker's PID namespace, in which the locks name threads by their ids.
  std::uint64_t pid_namespace;
  RingProducers producers;
  RingConsumers consumers;
  alignas(128) WaitWord items;                     ///< getters wait for items
  alignas(128) WaitWord space;                     ///< putters wait for space when there is a bound
  alignas(128) std::atomic<std::uint32_t> chunks;  ///< physical chunks with memory behind them
};

static_assert(sizeof(RingSlot) == 256);
static_assert(sizeof(RingProducers) == 128 && offsetof(RingProducers, intent) == 56);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

/// The size of the extra bytes, for data of the ring's users besides the items; sparse, and reserved before use.
inline constexpr std::size_t kExtraBytes = (4UL << 20) + 4096;

/// The places of the parts: header, directory (u32 a logical chunk), owners (u64 a physical chunk), extra, chunks.
/// Thread safety: as a value.
class RingGeometry {
 public:
  explicit RingGeometry(std::uint32_t max_chunks) noexcept : max_chunks_(max_chunks) {}

  std::uint32_t max_chunks() const noexcept { return max_chunks_; }
  std::size_t directory() const noexcept { return kPage; }
  std::size_t owners() const noexcept { return directory() + whole_pages(max_chunks_ * 4UL); }
  std::size_t extra() const noexcept { return owners() + whole_pages(max_chunks_ * 8UL); }
  std::size_t chunk(std::uint32_t p) const noexcept { return extra() + kExtraBytes + p * kChunkBytes; }
  std::size_t size() const noexcept { return chunk(max_chunks_); }

  static constexpr std::size_t kPage = 4096;
  static std::size_t whole_pages(std::size_t bytes) noexcept { return (bytes + kPage - 1) / kPage * kPage; }

 private:
  std::uint32_t max_chunks_;
};
static_assert(sizeof(RingHeader) <= RingGeometry::kPage);

}  // namespace onecopy
