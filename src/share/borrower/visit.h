// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace onecopy {

/// While it lives, this thread may touch the memory of `place` although it holds no block there. The closer of a
/// place learns from visitors() when no such thread is left, and the memory can be given back.
///
/// Order: a visitor begins its visit, looks whether the place is closed, and if so touches nothing. The closer
/// closes, then looks for visitors. The later one sees the earlier one: a visitor's stores are plain, and visitors()
/// makes those of all threads visible (membarrier(2)).
///
/// Thread safety: a visit belongs to its thread, and one thread makes one at a time.
class Visit {
 public:
  explicit Visit(const void* place) noexcept : visitor_(mine_ ? *mine_ : begin()) {
    visitor_.place.store(place, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  ~Visit() { visitor_.place.store(nullptr, std::memory_order_release); }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

  enum class Visitors : std::uint8_t {
    none,
    some,
    unknown,  ///< the kernel does not tell
  };
  /// Registers this process for visitors() with the kernel. In a process with threads that takes some ten
  /// milliseconds, once. Call it where no other thread waits.
  static void prepare() noexcept;
  static Visitors visitors(const void* place) noexcept;
  /// In a forked child: the parent's other threads are not here.
  static void forget_others() noexcept;

 private:
  struct Visitor {  ///< of one thread at a time, and never destroyed
    std::atomic<const void*> place{nullptr};
    std::atomic<bool> is_taken{true};
    Visitor* next = nullptr;
  };
  struct Leaving;

  static Visitor& begin() noexcept;
  static Visitor* take() noexcept;

  inline static std::atomic<Visitor*> all_{nullptr};
  inline static thread_local Visitor* mine_ = nullptr;

  Visitor& visitor_;
};

}  // namespace onecopy
