// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "os/fd.h"

namespace onecopy {

/// A set of descriptors to wait for (epoll), each identified by a token that the caller chooses.
///
/// Thread safety: add, rearm and remove may be called while another thread waits. Does not own the descriptors: remove
/// a descriptor before closing it. A Poller cannot be used in a forked child, which must construct a new one.
class Poller {
 public:
  Poller();

  /// Reports `token` while `fd` is readable, closed by the peer or broken; with `edge`, once for each change to that
  /// state. If `writable` is true, reports `token` also while there is room to send.
  void add(int fd, std::uint64_t token, bool edge = false, bool writable = false);
  /// Replaces the flags of add() and reports the present state again.
  void rearm(int fd, std::uint64_t token, bool edge = false, bool writable = false);
  /// Removes `fd`, if it was added.
  void remove(int fd) noexcept;

  /// Returns the tokens of the descriptors that are ready (at most 64 at a time, each once), or nothing after
  /// `timeout`; a negative timeout means no limit. Returns early, with nothing, if a signal arrives.
  std::vector<std::uint64_t> wait(std::chrono::milliseconds timeout);

  int fd() const noexcept { return fd_.get(); }

 private:
  Fd fd_;
};

/// A flag that a Poller can wait for (eventfd): its descriptor is readable while the flag is set.
///
/// Thread safety: all members may be called concurrently; set() also from a signal handler. A forked child shares the
/// flag with its parent.
class Event {
 public:
  Event();

  void set() noexcept;
  void clear() noexcept;
  int fd() const noexcept { return fd_.get(); }

 private:
  Fd fd_;
};

}  // namespace onecopy
