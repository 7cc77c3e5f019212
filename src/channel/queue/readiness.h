// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "channel/ring/ring.h"
#include "os/event.h"
#include "os/mutex.h"

namespace onecopy {

/// A descriptor for select, poll and epoll that is readable while a ring has an item or is closed.
///
/// A thread of its own sleeps on the ring as a getter does, so putters pay for it as for a getter. While the ring has
/// items, it costs putters nothing: the thread looks from time to time whether others have emptied the ring. Users of
/// this process report their puts and gets, which is quicker.
///
/// Thread safety: all members may be called concurrently, but for the fork ones and the destructor. Invariant: the
/// descriptor is made unreadable only under mutex_, and the ring is looked at after that.
class Readiness {
 public:
  /// Runs on the thread between two sleeps, ten times a second, while the ring is empty. The function may close the
  /// ring: a pipe's does so when no process is left that sends. May be empty; must not throw.
  using LookAround = std::function<void()>;

  /// Throws out_of_descriptors, out_of_memory.
  explicit Readiness(Ring& ring, LookAround look_around = {});
  ~Readiness();

  int fd() const noexcept { return event_.fd(); }
  /// Makes the descriptor show the present state.
  void refresh() noexcept;

  /// Ends the thread, before a fork and at exit. start_again() resumes.
  void stop() noexcept;
  void start_again() noexcept;
  // Called around a fork, with the thread stopped. A child destroys it: the descriptor is its parent's too.
  void lock() noexcept ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() noexcept RELEASE(mutex_) { mutex_.unlock(); }

 private:
  using Duration = std::chrono::milliseconds;

  void start();
  void run() noexcept;
  void watch();
  bool refresh_locked() REQUIRES(mutex_);
  void wait_until_drained(Duration& pause);

  Ring& ring_;
  const LookAround look_around_;
  Event event_;
  Mutex mutex_;
  Condition drained_;
  bool readable_ GUARDED_BY(mutex_) = false;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace onecopy
