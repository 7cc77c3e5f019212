// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace onecopy {

/// While a guard lives, its thread may touch the memory of `place` although it holds no block there. The thread that
/// closes a place learns from readers_of() when no guard is left, and the memory can be given back.
///
/// Order: a reader raises its guard, looks whether the place is closed, and if so touches nothing. The closer closes,
/// then looks for readers. The later one sees the earlier one: a guard's stores are plain, and readers_of() makes those
/// of all threads visible (membarrier(2)).
///
/// Thread safety: a guard belongs to its thread, and one thread has one at a time.
class HazardGuard {
 public:
  explicit HazardGuard(const void* place) noexcept : slot_(mine_ ? *mine_ : begin()) {
    slot_.place.store(place, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  ~HazardGuard() { slot_.place.store(nullptr, std::memory_order_release); }
  HazardGuard(const HazardGuard&) = delete;
  HazardGuard& operator=(const HazardGuard&) = delete;

  enum class Readers : std::uint8_t {
    none,
    some,
    unknown,  ///< the kernel does not tell
  };
  /// Registers this process with the kernel for readers_of(), once. In a process with other threads this takes some
  /// ten milliseconds, and many seconds on a machine with far too much to do: call it where no other thread waits.
  static void prepare() noexcept;
  /// Registers this process if it has one thread, when the kernel need not wait for any other.
  static void prepare_if_single_threaded() noexcept;
  static Readers readers_of(const void* place) noexcept;
  /// In a forked child: the parent's other threads are not here.
  static void forget_others() noexcept;

 private:
  struct Slot {  ///< of one thread at a time, and never destroyed
    std::atomic<const void*> place{nullptr};
    std::atomic<bool> is_taken{true};
    Slot* next = nullptr;
  };
  struct SlotReturn;

  static Slot& begin() noexcept;
  static Slot* take() noexcept;

  inline static std::atomic<Slot*> all_{nullptr};
  inline static thread_local Slot* mine_ = nullptr;

  Slot& slot_;
};

}  // namespace onecopy
