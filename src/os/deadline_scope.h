// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>

#include "os/deadline.h"

namespace onecopy {

/// How long a broker may take to answer, at most. It takes well under a millisecond; after this time it is stopped or
/// starved. Tests lower it.
inline std::atomic<int> reply_timeout_ms{10'000};

/// While a scope lives, its thread waits for brokers until the scope's deadline at most, but for a tenth of a second in
/// any case. That is many times the time of an answer. Thread safety: a scope belongs to its thread.
class DeadlineScope {
 public:
  explicit DeadlineScope(Deadline deadline) noexcept;
  ~DeadlineScope();
  DeadlineScope(const DeadlineScope&) = delete;
  DeadlineScope& operator=(const DeadlineScope&) = delete;

 private:
  const Deadline before_;
};

/// Returns how long this thread waits for a broker now.
std::chrono::milliseconds reply_timeout() noexcept;

}  // namespace onecopy
