// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace onecopy {

/// The moment at which waiting ends. Made from a timeout; a negative one never ends. Thread safety: as a value.
class Deadline {
 public:
  explicit Deadline(std::chrono::milliseconds timeout) noexcept;

  bool passed() const noexcept { return poll_timeout() == 0; }
  /// Milliseconds left as poll(2) takes them: rounded up, -1 for ever.
  int poll_timeout() const noexcept;

  /// Waits for `events` (POLLIN, POLLOUT), an error or a hang-up on `fd`, going on after signals. Returns false if
  /// the moment came first.
  bool wait_for(int fd, short events) const;

 private:
  bool never_;
  std::chrono::steady_clock::time_point at_;
};

}  // namespace onecopy
