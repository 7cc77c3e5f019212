// SPDX-License-Identifier: Apache-2.0
#include "os/deadline.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "onecopy/core/error.h"

namespace onecopy {

using namespace std::chrono_literals;

Deadline::Deadline(std::chrono::milliseconds timeout) noexcept
    // A year is for ever, so that the sum cannot overflow.
    : never_(timeout < 0ms || timeout > 24h * 365),
      at_(never_ ? std::chrono::steady_clock::time_point::max()
                 : std::chrono::steady_clock::now() + timeout) {}

int Deadline::poll_timeout() const noexcept {
  if (never_) return -1;
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(at_ - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<decltype(left)>(left, 0, std::numeric_limits<int>::max()));
}

bool Deadline::wait_for(int fd, short events) const {
  for (;;) {
    pollfd entry{fd, events, 0};
    const int timeout = poll_timeout();
    const int ready = ::poll(&entry, 1, timeout);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) throw_errno("cannot wait for a descriptor", errno);
    if (ready == 0 && timeout == 0) return false;
  }
}

}  // namespace onecopy
