// SPDX-License-Identifier: Apache-2.0
#include "os/deadline.h"

#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <limits>

#include "onecopy/core/error.h"
#include "os/poll_once.h"

namespace onecopy {

using namespace std::chrono_literals;

Deadline::Deadline(std::chrono::milliseconds timeout) noexcept
    : at_(timeout < 0ms ? TimePoint::max() : after(timeout).at()) {}

Deadline Deadline::after(nanoseconds timeout) noexcept {
  return timeout <= 0ns ? kNow : after(std::chrono::steady_clock::now(), timeout);
}

Deadline Deadline::after_seconds(double seconds) {
  constexpr double kLongest = 1e9;
  if (std::isnan(seconds)) throw Error(ErrorCode::invalid_argument, "timeout is not a number");
  if (seconds <= 0) return kNow;
  if (seconds > kLongest) return kForever;
  return after(std::chrono::duration_cast<nanoseconds>(std::chrono::duration<double>(seconds)));
}

Deadline Deadline::after_about(nanoseconds timeout) noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return after(TimePoint(std::chrono::seconds(now.tv_sec) + nanoseconds(now.tv_nsec)), timeout);
}

int Deadline::poll_timeout() const noexcept {
  if (is_never()) return -1;
  const auto milliseconds = whole_ms_left(nanoseconds::max()).count();
  return static_cast<int>(std::min<std::int64_t>(milliseconds, std::numeric_limits<int>::max()));
}

int poll_once(std::span<pollfd> entries, int timeout) {
  const int ready = ::poll(entries.data(), entries.size(), timeout);
  if (ready >= 0) return ready;
  if (errno == EINTR) return 0;
  const int error = errno == EINVAL ? EMFILE : errno;  // EINVAL: there are more entries than RLIMIT_NOFILE
  throw_errno(fmt::format("cannot wait for {} descriptors", entries.size()), error);
}

bool Deadline::wait_for(int fd, short events) const {
  for (;;) {
    pollfd entry{fd, events, 0};
    const int timeout = poll_timeout();
    if (poll_once({&entry, 1}, timeout) > 0) return true;
    if (timeout == 0) return false;
  }
}

}  // namespace onecopy
