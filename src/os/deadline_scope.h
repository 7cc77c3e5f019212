// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>

#include "os/deadline.h"

namespace onecopy {

/// The max time in which a broker must answer. An answer takes well under a millisecond; a broker that misses this
/// limit is stopped or starved. Tests lower the limit.
inline std::atomic<int> reply_timeout_ms{10'000};

/// A scope that limits how long its thread waits for brokers: to the scope's deadline, but to at least a tenth of a
/// second, which is many times the time of an answer. Thread safety: a scope belongs to its thread.
class DeadlineScope {
 public:
  explicit DeadlineScope(Deadline deadline) noexcept;
  ~DeadlineScope();
  DeadlineScope& operator=(DeadlineScope&&) = delete;

 private:
  const Deadline before_;
};

/// A scope in which its thread waits for brokers for at most `patience`, which may be less than a DeadlineScope grants.
/// For a thread that must not be held up by a stopped process. Thread safety: a scope belongs to its thread.
class PatienceScope {
 public:
  explicit PatienceScope(std::chrono::milliseconds patience) noexcept;
  ~PatienceScope();
  PatienceScope& operator=(PatienceScope&&) = delete;

 private:
  const std::chrono::milliseconds before_;
};

/// Returns how long this thread waits for a broker now.
std::chrono::milliseconds reply_timeout() noexcept;

}  // namespace onecopy
