// SPDX-License-Identifier: Apache-2.0
#include "os/deadline_scope.h"

#include <algorithm>
#include <utility>

namespace onecopy {

namespace {

thread_local auto patience_ends = std::chrono::steady_clock::time_point::max();

}  // namespace

Patience::DeadlineScope(std::chrono::steady_clock::time_point deadline) noexcept
    : before_(std::exchange(patience_ends, std::max(deadline, std::chrono::steady_clock::now()))) {}

Patience::~DeadlineScope() { patience_ends = before_; }

std::chrono::milliseconds reply_timeout() noexcept {
  using std::chrono::milliseconds;
  constexpr milliseconds kLeast{100};
  const milliseconds most(reply_timeout_ms);
  if (patience_ends == std::chrono::steady_clock::time_point::max()) return most;
  const auto left = std::chrono::ceil<milliseconds>(patience_ends - std::chrono::steady_clock::now());
  return std::min(most, std::max(left, kLeast));
}

}  // namespace onecopy
