// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>

namespace onecopy::rpc {

/// The times that threads look at the lanes before they sleep: the default, and longer ones while messages come a
/// little later.
struct SpinTimes {
  std::chrono::nanoseconds usual{0}, most{0};

  bool is_any() const noexcept { return most.count() != 0; }
  /// Returns whether the program or its environment has chosen a time, which does not change.
  bool is_chosen() const noexcept { return usual == most; }
  /// Returns the time of a thread that waits for a call, by the mean of its function. A call that takes longer burns no processor.
  std::chrono::nanoseconds for_call(std::chrono::nanoseconds mean) const noexcept {
    if (mean > most) return std::chrono::nanoseconds{0};
    return std::clamp(2 * mean, usual, most);
  }
  /// Returns the time for a worker that has just slept for `slept`. A caller that computes between its calls would
  /// otherwise have to wake the worker for each call.
  std::chrono::nanoseconds after_sleep(std::chrono::nanoseconds slept) const noexcept {
    return slept < most ? most : usual;
  }
};

/// Returns whether a group has so many members that threads which spin would take the time of those for which they wait.
inline bool is_crowd(std::size_t members, int processors) noexcept {
  constexpr std::size_t kMembersOfAProcessor = 4;
  return members > kMembersOfAProcessor * static_cast<std::size_t>(std::max(1, processors));
}

}  // namespace onecopy::rpc
