// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace onecopy {

// Functions that wait for and wake on a word in memory that processes share. Thread safety: all may be called
// concurrently, even on read-only mappings.

/// Sleeps while `word` holds `expected`. Returns false only if `timeout` passed. May return true without a wake: check
/// the word again.
bool futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                std::chrono::nanoseconds timeout) noexcept;
/// Wakes up to `count` waiters. Returns how many were asleep.
int futex_wake(const std::atomic<std::uint32_t>& word, int count) noexcept;

}  // namespace onecopy
