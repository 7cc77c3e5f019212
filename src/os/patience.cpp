// SPDX-License-Identifier: Apache-2.0
#include "os/patience.h"

#include <algorithm>
#include <utility>

namespace onecopy {

namespace {

thread_local auto patience_ends = std::chrono::steady_clock::time_point::max();

}  // namespace

Patience::Patience(std::chrono::steady_clock::time_point deadline) noexcept
    : before_(std::exchange(patience_ends, std::max(deadline, std::chrono::steady_clock::now()))) {}

Patience::~Patience() { patience_ends = before_; }

std::chrono::milliseconds broker_patience() noexcept {
  using std::chrono::milliseconds;
  constexpr milliseconds kLeast{100};
  const milliseconds most(broker_patience_ms);
  if (patience_ends == std::chrono::steady_clock::time_point::max()) return most;
  const auto left = std::chrono::ceil<milliseconds>(patience_ends - std::chrono::steady_clock::now());
  return std::min(most, std::max(left, kLeast));
}

}  // namespace onecopy
