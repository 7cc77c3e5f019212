// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>

namespace onecopy {

/// How long a broker may take to answer, at most. It takes well under a millisecond; after this time it is stopped or
/// starved. Tests lower it.
inline std::atomic<int> reply_timeout_ms{10'000};

/// While one lives, this thread waits for brokers until its deadline at most, but for a tenth of a second in any
/// case. That is many times the time of an answer.
class DeadlineScope {
 public:
  explicit DeadlineScope(std::chrono::steady_clock::time_point deadline) noexcept;
  ~DeadlineScope();
  DeadlineScope(const Patience&) = delete;
  Patience& operator=(const Patience&) = delete;

 private:
  const std::chrono::steady_clock::time_point before_;
};

/// How long this thread waits for a broker now.
std::chrono::milliseconds reply_timeout() noexcept;

}  // namespace onecopy
