// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "os/fd.h"

namespace onecopy {

/// Waits for many descriptors at once (epoll). Each is known by a token of the caller's choice.
///
/// Thread safety: add, rearm and remove may be called while another thread waits. Does not own the
/// descriptors: remove one before closing it. Not usable in a forked child: make a new one there.
class Poller {
 public:
  Poller();

  /// Reports `token` while `fd` is readable, closed by the peer or broken; with `edge`, once for each
  /// change to that. With `writable`, also while there is room to send.
  void add(int fd, std::uint64_t token, bool edge = false, bool writable = false);
  /// Changes what add() said; reports the present state again.
  void rearm(int fd, std::uint64_t token, bool edge = false, bool writable = false);
  /// Has no effect if `fd` was not added.
  void remove(int fd) noexcept;

  /// Tokens of the descriptors to look at (at most 64 at a time, each once); empty if `timeout` passed. Negative: no
  /// limit. If a signal arrives, returns early and empty.
  std::vector<std::uint64_t> wait(std::chrono::milliseconds timeout);

  int fd() const noexcept { return fd_.get(); }

 private:
  Fd fd_;
};

}  // namespace onecopy
