// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <iterator>
#include <string>

#include <fmt/format.h>

#include "os/log.h"

namespace onecopy::store {

/// The times of the steps of one operation, for the debug log. Measures nothing unless debug lines are logged. Thread
/// safety: none.
class StepTimes {
 public:
  /// Ends a step, which began at the end of the step before.
  void end(const char* step) {
    if (!is_on_) return;
    const auto now = Clock::now();
    const std::chrono::duration<double, std::milli> took = now - since_;
    fmt::format_to(std::back_inserter(text_), "{}{} {:.3f}", text_.empty() ? "" : ", ", step, took.count());
    since_ = now;
  }
  /// Returns all steps with their milliseconds.
  const std::string& text() const noexcept { return text_; }

 private:
  using Clock = std::chrono::steady_clock;

  const bool is_on_ = logs_debug();
  Clock::time_point since_ = Clock::now();
  std::string text_;
};

}  // namespace onecopy::store
