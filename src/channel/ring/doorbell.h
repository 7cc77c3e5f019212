// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "channel/ring/ring_wait.h"

namespace onecopy {

/// A word in shared memory that threads of one process sleep on, and other processes ring.
///
/// The two low bits say whether a ring is worth a system call. The rest is a new value after every arming and every
/// wake, so that no thread falls asleep on a word that a ring has passed. A sleeper arms, looks again for what it waits
/// for, and sleeps; a ringer commits, and rings.
/// Thread safety: all members may be called concurrently. Zeroed memory is a bell that no thread listens to.
class Bell {
 public:
  enum State : std::uint32_t {
    deserted = 0,  ///< no thread listens
    asleep = 1,    ///< a thread may be sleeping: a ring wakes it
    awake = 2,  ///< a thread looks by itself again and again, or will when it needs to: a ring does nothing
  };

  std::uint32_t value() const noexcept { return word_.load(); }
  static State state_of(std::uint32_t value) noexcept { return static_cast<State>(value & kStates); }
  State state() const noexcept { return state_of(value()); }

  /// From here on a thread looks by itself. Returns the value that says so.
  std::uint32_t watch() noexcept { return set(awake); }
  /// watch(), without a write to the word if it says so already: a ringer has it in its cache.
  void stay_awake() noexcept {
    if (state() != awake) set(awake);
  }
  /// From here on a ring wakes. Returns the value to sleep on.
  std::uint32_t arm() noexcept { return set(asleep); }
  /// No thread listens from here on.
  void desert() noexcept { set(deserted); }
  /// desert(), if the word says that a thread is awake. True when it did.
  bool desert_if_awake() noexcept {
    const std::uint32_t seen = word_.load();
    return state_of(seen) == awake && desert_from(seen);
  }
  /// desert(), unless another thread has changed the state since the word was `seen`.
  bool desert_from(std::uint32_t seen) noexcept {
    return word_.compare_exchange_strong(seen, (seen & ~kStates) + kStep);
  }

  /// Notes the processor of this thread, which listens.
  void listen_here() noexcept;
  /// Whether the listener was on the caller's processor when it last said so. Then it cannot run while the caller
  /// spins: a caller that waits for it must sleep.
  bool shares_processor() const noexcept;

  /// Wakes one sleeper if there may be one. Returns the state that it found.
  State ring() noexcept {
    const std::uint32_t seen = word_.load();
    if (state_of(seen) == asleep) wake(seen);
    return state_of(seen);
  }
  void ring_all() noexcept;
  /// Sleeps while the word holds `armed`: until `deadline`, a slice at most. False when a whole slice has passed.
  bool sleep(std::uint32_t armed, Deadline deadline) const noexcept;
  /// For threads beside the one that sleeps on the word: a ring wakes one of them only when it finds none there. So one
  /// thread, whose caches are warm, does what there is to do. `seen` is what reserve() was before the last look.
  bool sleep_in_reserve(std::uint32_t seen, Deadline deadline) const noexcept;
  std::uint32_t reserve() const noexcept { return reserve_.load(); }

 private:
  static constexpr std::uint32_t kStates = 3;
  static constexpr std::uint32_t kStep = 4;

  std::uint32_t set(State state) noexcept;
  void wake(std::uint32_t seen) noexcept;

  std::atomic<std::uint32_t> word_{0};
  std::atomic<std::uint32_t> reserve_{0};
  std::atomic<std::int32_t> processor_{0};  ///< the listener's, plus 1; 0: it never said
};

/// The bells that all lanes into one process ring: one for answers, which waiting threads listen to, and one for calls,
/// which its workers do. An answer that no thread waits for rings for a worker, unless none is needed for answers.
/// Thread safety: all members may be called concurrently.
struct Doorbell {
  alignas(128) Bell answers;
  alignas(128) Bell calls;

  void ring_for_answer() noexcept {
    if (answers.ring() == Bell::deserted) calls.ring();
  }
  void ring_for_call() noexcept { calls.ring(); }
};
static_assert(sizeof(Doorbell) == 256 && sizeof(Bell) == 12);

}  // namespace onecopy
