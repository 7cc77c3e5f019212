// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <compare>

namespace onecopy {

using TimePoint = std::chrono::steady_clock::time_point;

/// The time at which a wait ends: never, at once (the call tries once), or a moment of the steady clock. Thread safety:
/// as a value.
class Deadline {
 public:
  using nanoseconds = std::chrono::nanoseconds;

  constexpr Deadline(TimePoint at) noexcept : at_(at) {}  // NOLINT: a moment is a deadline
  /// Constructs a deadline from a timeout of poll(2): a negative one never ends.
  explicit Deadline(std::chrono::milliseconds timeout) noexcept;
  /// Returns `timeout` from now, without overflow; kNow for zero and less.
  static Deadline after(nanoseconds timeout) noexcept;
  /// Returns after() for seconds, or kForever for infinity. Throws invalid_argument for NaN.
  static Deadline after_seconds(double seconds);
  template <class Rep, class Period>
  static Deadline after(std::chrono::duration<Rep, Period> timeout) noexcept {
    constexpr std::chrono::duration<Rep, Period> kLongest = std::chrono::hours(24 * 365 * 100);
    return timeout > kLongest ? Deadline(TimePoint::max()) : after(nanoseconds(timeout));
  }
  /// Returns after() to within a few milliseconds, for a fraction of its time.
  static Deadline after_about(nanoseconds timeout) noexcept;

  constexpr TimePoint at() const noexcept { return at_; }
  constexpr bool is_never() const noexcept { return at_ == TimePoint::max(); }
  bool has_passed() const noexcept { return !is_never() && std::chrono::steady_clock::now() > at_; }
  /// Returns the time left, limited to `max`; zero if the deadline has passed.
  nanoseconds left(nanoseconds max = nanoseconds::max()) const noexcept {
    if (is_never()) return max;
    if (at_ == TimePoint::min()) return nanoseconds{0};
    return std::clamp(nanoseconds{at_ - std::chrono::steady_clock::now()}, nanoseconds{0}, max);
  }
  /// Returns left() rounded up to milliseconds: after a wait of this length the deadline has passed.
  std::chrono::milliseconds whole_ms_left(nanoseconds max) const noexcept {
    return std::chrono::ceil<std::chrono::milliseconds>(left(max));
  }
  /// Returns the milliseconds left, rounded up, as poll(2) takes them: -1 means no limit.
  int poll_timeout() const noexcept;
  /// Waits for `events` (POLLIN, POLLOUT), an error or a hang-up on `fd`, and resumes after signals. Returns false at
  /// the deadline.
  bool wait_for(int fd, short events) const;

  friend constexpr bool operator==(Deadline a, Deadline b) noexcept { return a.at_ == b.at_; }
  friend constexpr auto operator<=>(Deadline a, Deadline b) noexcept { return a.at_ <=> b.at_; }

 private:
  static Deadline after(TimePoint now, nanoseconds timeout) noexcept {
    return timeout > TimePoint::max() - now ? TimePoint::max() : now + timeout;
  }

  TimePoint at_;
};

inline constexpr Deadline kForever = TimePoint::max();
/// A deadline for a call that tries once and does not wait.
inline constexpr Deadline kNow = TimePoint::min();

}  // namespace onecopy
