// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "onecopy/core/error.h"
#include "os/deadline.h"
#include "os/fd.h"
#include "os/poller.h"

namespace onecopy {

/// A descriptor that is readable while a listener's accept() has work to do. The descriptor watches the listener's
/// socket, its clients, and a timer for the moment at which a listener without room may drop a client.
///
/// Thread safety: none. Invariant: a descriptor is removed before it is closed, because a forked child may keep its
/// file open.
class ListenerEvents {
 public:
  /// Watches the socket of a listener. Throws out_of_descriptors, system.
  explicit ListenerEvents(int listening)
      : timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)), listening_(listening) {
    if (!timer_) throw_errno("cannot create a timer", errno);
    poller_.add(timer_.get(), 0);
    poller_.add(listening_, 0);
  }

  int fd() const noexcept { return poller_.fd(); }
  void add(int client) { poller_.add(client, 0); }
  void remove(int client) noexcept { poller_.remove(client); }
  /// Watches the listener's socket, or the time `room` if the listener has no room for another client until then.
  void listen_until(bool listens, Deadline room) {
    constexpr std::chrono::nanoseconds kLongest = std::chrono::hours(1);
    constexpr std::chrono::nanoseconds kShortest{1};  // 0 would disarm the timer
    if (std::exchange(listens_, listens) != listens)
      listens ? poller_.add(listening_, 0) : poller_.remove(listening_);
    const std::chrono::nanoseconds left =
        listens ? std::chrono::nanoseconds{0} : std::max(kShortest, room.left(kLongest));
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
    itimerspec when{};
    when.it_value = {seconds.count(), (left - seconds).count()};
    if (::timerfd_settime(timer_.get(), 0, &when, nullptr) != 0) throw_errno("cannot set a timer", errno);
  }
  /// Returns true in the process that made it: a forked child shares the descriptor, and must not change it.
  bool is_ours() const noexcept { return maker_ == ::getpid(); }

 private:
  Poller poller_;
  Fd timer_;
  int listening_;
  bool listens_ = true;
  int maker_ = ::getpid();
};

}  // namespace onecopy
