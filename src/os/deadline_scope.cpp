// SPDX-License-Identifier: Apache-2.0
#include "os/deadline_scope.h"

#include <algorithm>
#include <utility>

namespace onecopy {

namespace {

thread_local Deadline innermost = kForever;
thread_local std::chrono::milliseconds max_patience = std::chrono::milliseconds::max();

}  // namespace

DeadlineScope::DeadlineScope(Deadline deadline) noexcept
    : before_(std::exchange(innermost, std::max<Deadline>(deadline, std::chrono::steady_clock::now()))) {}

DeadlineScope::~DeadlineScope() { innermost = before_; }

PatienceScope::PatienceScope(std::chrono::milliseconds patience) noexcept
    : before_(std::exchange(max_patience, patience)) {}

PatienceScope::~PatienceScope() { max_patience = before_; }

std::chrono::milliseconds reply_timeout() noexcept {
  using std::chrono::milliseconds;
  constexpr milliseconds kLeast{100};
  const milliseconds most = std::min(milliseconds(reply_timeout_ms), max_patience);
  if (innermost.is_never()) return most;
  return std::min(most, std::max(innermost.whole_ms_left(std::chrono::hours(1)), kLeast));
}

}  // namespace onecopy
