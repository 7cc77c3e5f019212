// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>

#include "onecopy/memory/tensor.h"

namespace onecopy::cli {

/// A pair of words in shared memory, each in its own cache line: the fastest exchange between two processes. One
/// process calls ping(), the other pong().
struct PingPong {
  static constexpr std::uint32_t kStop = ~std::uint32_t{0};

  struct alignas(64) Word {
    std::atomic<std::uint32_t> value;
  };
  Word there;
  Word back;

  static PingPong& in(const Tensor& tensor) { return *tensor.as<PingPong>(); }

  void ping(std::uint32_t number) {
    there.value.store(number);
    wait_for(back.value, number);
  }
  void stop() { there.value.store(kStop); }
  void pong() {
    for (std::uint32_t last = 0;;) {
      last = wait_for_other(there.value, last);
      back.value.store(last);
      if (last == kStop) return;
    }
  }

 private:
  /// Spins until the condition is true. Yields now and then, because there may be only one processor.
  template <class Condition>
  static void spin_until(Condition&& condition) {
    for (int spins = 0; !condition(); ++spins)
      if (spins % 4096 == 4095) ::sched_yield();
  }
  static void wait_for(const std::atomic<std::uint32_t>& word, std::uint32_t number) {
    spin_until([&] { return word.load() == number; });
  }
  static std::uint32_t wait_for_other(const std::atomic<std::uint32_t>& word, std::uint32_t number) {
    std::uint32_t now = number;
    spin_until([&] { return (now = word.load()) != number; });
    return now;
  }
};

}  // namespace onecopy::cli
