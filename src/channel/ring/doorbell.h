// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "channel/ring/ring_wait.h"

namespace onecopy {

/// A WaitWord that threads of one process sleep on, and other processes ring.
/// Thread safety: all members may be called concurrently. Zeroed memory is a bell that no thread listens to.
class Bell {
 public:
  using State = WaitWord::State;
  static constexpr State deserted = WaitWord::deserted;
  static constexpr State asleep = WaitWord::asleep;
  static constexpr State awake = WaitWord::awake;

  std::uint32_t value() const noexcept { return word_.word.load(); }
  static State state_of(std::uint32_t value) noexcept { return WaitWord::state_of(value); }
  State state() const noexcept { return word_.state(); }

  /// Notes that a thread looks without being woken. Returns the value of the word.
  std::uint32_t watch() noexcept { return word_.set(awake); }
  /// Calls watch(), unless the state is awake already: a write would take the word out of the ringers' caches.
  void stay_awake() noexcept {
    if (state() != awake) watch();
  }
  /// Makes each ring wake a sleeper. Returns the value to sleep on.
  std::uint32_t arm() noexcept { return word_.arm(); }
  /// Notes that no thread listens.
  void desert() noexcept { word_.set(deserted); }
  /// Calls desert() if the state is awake. Returns whether it was.
  bool desert_if_awake() noexcept {
    const std::uint32_t seen = value();
    return state_of(seen) == awake && desert_from(seen);
  }
  /// Calls desert(), unless another thread has changed the word since it was `seen`.
  bool desert_from(std::uint32_t seen) noexcept { return word_.desert_from(seen); }

  /// Notes that this thread listens, and on which processor.
  void listen_here() noexcept;
  /// Returns whether the listener was on the caller's processor at its last listen_here(). If so, the listener cannot
  /// run while the caller spins, so a caller that waits for the listener must sleep.
  bool shares_processor() const noexcept;

  /// Wakes one sleeper if there may be one. Returns the state that it found.
  State ring() noexcept {
    const State found = state();
    if (found == asleep) wake();
    return found;
  }
  void ring_all() noexcept;
  /// Sleeps while the word is `armed`, until `deadline` and at most for a slice. Returns false if a whole slice has
  /// passed.
  bool sleep(std::uint32_t armed, Deadline deadline) const noexcept {
    return sleep_on(word_, armed, deadline);
  }
  /// Sleeps in reserve: a ring wakes a thread here only if no thread sleeps on the word. So one thread, whose caches
  /// are warm, does all the work as long as it can. `seen` is the value that reserve() had before the caller's last
  /// look.
  bool sleep_in_reserve(std::uint32_t seen, Deadline deadline) const noexcept {
    return sleep_on(reserve_, seen, deadline);
  }
  std::uint32_t reserve() const noexcept { return reserve_.load(); }

 private:
  void wake() noexcept;

  WaitWord word_{};
  std::atomic<std::uint32_t> reserve_{0};
  std::atomic<std::int32_t> processor_{0};  ///< the listener's processor plus 1; 0 if it is unknown
};

/// The bells that all lanes into one process ring: one for answers, to which waiting threads listen, and one for calls,
/// to which workers listen. An answer for which no thread waits wakes a worker, unless none is needed for answers.
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
