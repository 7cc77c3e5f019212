// SPDX-License-Identifier: Apache-2.0
#include "channel/queue/readiness.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "onecopy/core/error.h"
#include "os/blocked_signals.h"
#include "os/log.h"

namespace onecopy {

using namespace std::chrono_literals;

namespace {

/// The shortest and the longest pause between two checks whether other processes have emptied the ring; each pause is
/// longer than the last.
constexpr std::chrono::milliseconds kFirstLook = 2ms;
constexpr std::chrono::milliseconds kLongestPause = 100ms;

}  // namespace

Readiness::Readiness(Ring& ring, LookAround look_around)
    : ring_(ring), look_around_(std::move(look_around)) {
  refresh_locked();
  start();
}

void Readiness::start() {
  const BlockedSignals blocked;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& e) {
    throw Error(ErrorCode::out_of_memory,
                fmt::format("cannot start the thread that watches a queue: {}; raise the limit of "
                            "processes (`ulimit -u`) or of address space (`ulimit -v`)",
                            e.what()),
                e.code().value(), ErrorDomain::posix);
  }
}

void Readiness::stop() noexcept {
  if (!thread_.joinable()) return;
  {
    const LockGuard lock(mutex_);  // so that the thread is not between reading stopping_ and its sleep
    stopping_ = true;
    drained_.notify_all();
  }
  RingWatcher(ring_).wake_all();
  thread_.join();
}

void Readiness::start_again() noexcept {
  stopping_ = false;
  try {
    start();
  } catch (const std::exception& error) {
    log_warning(error.what());
    event_.set();  // lets the reader try, who waits for the queue itself
  }
}

void Readiness::refresh() noexcept {
  try {
    const LockGuard lock(mutex_);
    if (refresh_locked()) drained_.notify_all();
  } catch (const Error&) {  // a damaged ring, which get() reports
    event_.set();
  }
}

/// Makes the descriptor show the present state. Returns true if it has become unreadable.
bool Readiness::refresh_locked() {
  bool drained = false;
  while (ring_.is_ready() != readable_) {
    drained = readable_;
    if (readable_) event_.clear();
    else event_.set();
    readable_ = !readable_;
  }
  return drained && !readable_;
}

void Readiness::run() noexcept {
  pthread_setname_np(pthread_self(), "onecopy-ready");
  try {
    watch();
  } catch (const std::exception& error) {
    log_warning("onecopy's watch over a queue ends: {}", error.what());
    event_.set();
  }
}

void Readiness::watch() {
  Duration pause = kFirstLook;
  while (!stopping_) {
    // Read before the ring is looked at: closing it later wakes this thread.
    const bool closed = ring_.is_closed();
    refresh();
    if (closed) return;  // stays readable for ever
    if (ring_.is_ready()) {
      if (pause == kFirstLook) RingWatcher(ring_).pass_on_wake();
      wait_until_drained(pause);
    } else {
      pause = kFirstLook;
      if (look_around_) look_around_();
      RingWatcher(ring_).doze([this] { return stopping_.load(); });  // at most for a slice
    }
  }
}

void Readiness::wait_until_drained(Duration& pause) {
  const LockGuard lock(mutex_);
  if (stopping_ || !readable_) return;
  drained_.wait_until(mutex_, std::chrono::steady_clock::now() + pause);
  pause = std::min(kLongestPause, pause * 2);
}

}  // namespace onecopy
