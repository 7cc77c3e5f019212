// SPDX-License-Identifier: Apache-2.0
#include "os/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace onecopy {
namespace {

// FUTEX_PRIVATE_FLAG is not set: the kernel finds the word by file and offset, whatever its addresses.
long futex(const std::atomic<std::uint32_t>& word, int operation, std::uint32_t value,
           const timespec* timeout) noexcept {
  return ::syscall(SYS_futex, &word, operation, value, timeout, nullptr, 0);
}

}  // namespace

static_assert(sizeof(std::atomic<std::uint32_t>) == 4 && std::atomic<std::uint32_t>::is_always_lock_free);

bool futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                std::chrono::nanoseconds timeout) noexcept {
  const auto left = std::max(timeout, std::chrono::nanoseconds(0)).count();
  const timespec limit{static_cast<time_t>(left / 1'000'000'000), static_cast<long>(left % 1'000'000'000)};
  return futex(word, FUTEX_WAIT, expected, &limit) == 0 || errno != ETIMEDOUT;
}

int futex_wake(const std::atomic<std::uint32_t>& word, int count) noexcept {
  return static_cast<int>(
      std::max(0L, futex(word, FUTEX_WAKE, static_cast<std::uint32_t>(count), nullptr)));
}

}  // namespace onecopy
