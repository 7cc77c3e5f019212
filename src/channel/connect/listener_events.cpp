// SPDX-License-Identifier: Apache-2.0
#include "channel/connect/listener_events.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "onecopy/core/error.h"

namespace onecopy {

ListenerEvents::ListenerEvents(int listening)
    : timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)),
      listening_(listening),
      maker_(::getpid()) {
  if (!timer_) throw_errno("cannot create a timer", errno);
  poller_.add(timer_.get(), 0);
  poller_.add(listening_, 0);
}

void ListenerEvents::listen_until(bool listens, Deadline room) {
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

bool ListenerEvents::is_ours() const noexcept { return maker_ == ::getpid(); }

}  // namespace onecopy
