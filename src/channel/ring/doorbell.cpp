// SPDX-License-Identifier: Apache-2.0
#include "channel/ring/doorbell.h"

#include <climits>

#include "os/futex.h"
#include "os/process.h"

namespace onecopy {

/// Wakes a thread that sleeps on the word, or else one in reserve. If there is neither, disarms the word, unless a
/// thread has armed it since.
void Bell::wake() noexcept {
  const std::uint32_t marked = word_.try_wake();
  if (marked == 0) return;
  reserve_.fetch_add(1);
  if (futex_wake(reserve_, 1) == 0) word_.desert_from(marked);
}

void Bell::listen_here() noexcept {
  const std::int32_t here = current_cpu() + 1;
  if (processor_.load(std::memory_order_relaxed) != here) processor_.store(here, std::memory_order_relaxed);
}

bool Bell::shares_processor() const noexcept {
  return processor_.load(std::memory_order_relaxed) == current_cpu() + 1;
}

void Bell::ring_all() noexcept {
  word_.notify_all();
  reserve_.fetch_add(1);
  futex_wake(reserve_, INT_MAX);
}

}  // namespace onecopy
