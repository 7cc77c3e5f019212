// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>

#include "onecopy/core/error.h"
#include "os/deadline.h"

namespace onecopy {

/// The time that a receiver sleeps before it checks whether a sender is left.
inline constexpr std::chrono::milliseconds kLookAround{100};

/// Calls take(deadline) until it returns something, and look() whenever nothing came for a while. look() returns whether
/// the queue is closed: take() is called again then, which returns what was put before, or throws. The messages of a
/// dying process were put before its end, so the last look for messages comes after its end.
///
/// If a stopped process holds the queue's lock or does not answer, waits as if for a message.
template <class Take, class Look>
auto take_looking_around(Deadline deadline, Take&& take, Look&& look) {
  const auto take_until = [&](Deadline pause) -> decltype(take(pause)) {
    try {
      return take(pause);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::timeout || deadline.left(kLookAround) == std::chrono::nanoseconds{0})
        throw;
      return {};
    }
  };
  for (;;) {
    const Deadline pause = std::min(deadline, Deadline::after(kLookAround));
    if (auto taken = take_until(pause)) return taken;
    if (!look() && pause == deadline) return decltype(take(pause)){};
  }
}

}  // namespace onecopy
