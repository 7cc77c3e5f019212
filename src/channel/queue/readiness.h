// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "channel/ring/ring.h"
#include "os/mutex.h"
#include "os/poller.h"

namespace onecopy {

/// A descriptor for select, poll and epoll that is readable while a ring has an item or is closed.
///
/// A thread sleeps on the ring as a getter does, so it costs putters as much as a getter. While the ring has items, it
/// costs putters nothing: the thread checks from time to time whether other processes have emptied the ring. Users in
/// this process report their puts and gets, so that the descriptor changes at once.
///
/// Thread safety: all members may be called concurrently, but for the fork ones and the destructor. Invariant: the
/// descriptor is made unreadable only under mutex_, and the ring is looked at after that.
class Readiness {
 public:
  /// Runs on the thread between two sleeps, ten times a second, while the ring is empty. The function may close the
  /// ring, as a pipe's does when no sender is left. May be empty; must not throw.
  using LookAround = std::function<void()>;

  /// Makes the descriptor and starts the thread. Throws out_of_descriptors, out_of_memory.
  explicit Readiness(Ring& ring, LookAround look_around = {});
  ~Readiness() { stop(); }

  int fd() const noexcept { return event_.fd(); }
  /// Makes the descriptor show the present state.
  void refresh() noexcept;

  /// Ends the thread, before a fork and at exit. start_again() restarts it.
  void stop() noexcept;
  void start_again() noexcept;
  // The fork handlers call the following members, with the thread stopped. A child destroys the object, because its
  // parent has the same descriptor.
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
