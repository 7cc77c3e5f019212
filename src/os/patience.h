// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>

namespace onecopy {

/// How long a broker may take to answer, at most. It takes well under a millisecond; this long means that it is
/// stopped or starved. Tests of that lower it.
inline std::atomic<int> broker_patience_ms{10'000};

/// While one lives, this thread waits for brokers no longer than until its deadline, or a tenth of a second, which
/// is many times what it takes them.
class Patience {
 public:
  explicit Patience(std::chrono::steady_clock::time_point deadline) noexcept;
  ~Patience();
  Patience(const Patience&) = delete;
  Patience& operator=(const Patience&) = delete;

 private:
  const std::chrono::steady_clock::time_point before_;
};

/// How long this thread waits for a broker now.
std::chrono::milliseconds broker_patience() noexcept;

}  // namespace onecopy
