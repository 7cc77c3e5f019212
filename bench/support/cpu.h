// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace onecopy::bench {

/// Returns the processors that this thread may run on.
std::vector<int> allowed_cpus();

/// Pins the calling thread to one processor for the lifetime of the object. `index` counts the allowed processors and
/// wraps.
class Pin {
 public:
  explicit Pin(int index);
  ~Pin();
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;

 private:
  std::vector<int> before_;
};

/// Returns the processor time of this process so far, user and system, in milliseconds.
double cpu_time_ms();

/// Yields the processor to other threads.
void give_way() noexcept;

/// Tells the processor that the caller spins.
inline void relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

/// Spins until ready() is true. Yields the processor now and then, since there may be only one.
template <class Ready>
void spin_until(Ready&& ready) {
  for (std::uint32_t spins = 1; !ready(); ++spins) {
    relax();
    if (spins % (1u << 16) == 0) give_way();
  }
}

}  // namespace onecopy::bench
