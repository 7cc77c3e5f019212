// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "os/event.h"
#include "os/mutex.h"
#include "os/poller.h"

namespace onecopy {

class Timer;

/// Asks for another look at a part, as Timer::request() does. May be empty, and takes no lock.
using Wakeup = std::function<void()>;

/// The one background thread of a process: it handles events of descriptors, and runs Timers.
///
/// It starts with the first add(), request of a Timer, or start(). Handlers and Timers run on it, one at a time,
/// without locks of the EventLoop; their exceptions are logged. It never waits for another process. Thread safety:
/// all members may be called concurrently, but for stop() and start_again().
class EventLoop {
 public:
  using Clock = std::chrono::steady_clock;
  using Task = std::function<void()>;

  /// `thread_name` has at most 15 characters.
  explicit EventLoop(const char* thread_name = "onecopy-watch");
  ~EventLoop();

  /// Runs `handler` whenever `fd` is readable or hung up; with `edge`, once a change. A pidfd is readable from the end
  /// of its process on. With `writable`, also when there is room to send.
  void add(int fd, Task handler, bool edge = false, bool writable = false);
  /// Reports the present state of an edge-triggered `fd` again.
  void rearm(int fd);
  /// No handler of `fd` starts after this. One may be running, on the loop's thread, unless the caller is that thread.
  void remove(int fd) noexcept;

  /// Starts the thread before it is needed.
  void start();
  /// On the loop's thread: it stays awake that long, because an answer is about to come.
  void stay_awake(std::chrono::microseconds most) noexcept;
  /// Ends stay_awake(): no answer is about to come.
  void may_sleep() noexcept;

  /// Ends the thread before a fork (or at exit); registrations and requests stay. start_again() resumes. If the system
  /// has no more threads then, the next request does.
  void stop() noexcept;
  void start_again() noexcept;
  /// In a forked child, where the parent's registrations mean nothing, and its lock may be held. From here on the loop
  /// is dead: requests, rearm() and remove() do nothing.
  void abandon() noexcept;
  /// Does stop() wait for the thread? Then a handler leaves events that are reported again.
  bool is_stopping() const noexcept { return stopping_; }
  /// Is the caller its thread, which all others wait for?
  bool runs_here() const noexcept { return running_ == this; }

 private:
  friend class Timer;

  struct Entry {
    int fd;
    bool edge, writable;
    std::shared_ptr<Task> handler;  // the registry and, while it runs, the thread
  };

  void ensure_thread() REQUIRES(mutex_);
  bool try_thread() noexcept REQUIRES(mutex_);
  void run() noexcept;
  void wait_and_handle();
  void handle(std::uint64_t token) noexcept;

  // For timers.
  void add(Timer& timer);
  void remove(Timer& timer) noexcept;
  void request_pass() noexcept;
  void forget_requests() noexcept REQUIRES(mutex_);
  Clock::time_point next_pass() const noexcept;
  void pass() noexcept;
  void run(Timer& timer) noexcept REQUIRES(mutex_);

  const char* const thread_name_;
  std::optional<Poller> poller_;  ///< none after abandon()
  std::optional<Event> wake_;
  Mutex mutex_;
  std::map<std::uint64_t, Entry> entries_ GUARDED_BY(mutex_);
  std::map<int, std::uint64_t> token_of_ GUARDED_BY(mutex_);
  std::uint64_t last_token_ GUARDED_BY(mutex_) = 0;
  std::vector<Timer*> timers_ GUARDED_BY(mutex_);
  const Timer* running_timer_ GUARDED_BY(mutex_) = nullptr;
  Condition timer_ended_;
  std::atomic<bool> pass_requested_{false};
  std::atomic<bool> stopping_{false};
  bool wanted_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
  // The thread's own, and the next one's: passes come on time in a process that forks often, too.
  Clock::time_point next_due_ = Clock::time_point::max();   ///< of the timers, but for requests
  Clock::time_point rested_at_ = Clock::time_point::min();  ///< the last pass, or events without one
  Clock::time_point awake_until_{};
  inline static thread_local const EventLoop* running_ = nullptr;  ///< whose thread this is
};

/// A task that the thread of an EventLoop runs: soon after a request, and again after the pause that it returns.
/// Requests of all timers are served together, every 20 ms at most.
///
/// Thread safety: request() may be called concurrently. The destructor waits for a run under way. REQUIRES: the
/// EventLoop outlives it, and the task does not destroy it.
class Timer {
 public:
  /// Empty: until the next request.
  using Pause = std::optional<std::chrono::milliseconds>;
  static constexpr std::chrono::milliseconds kSoon{20};
  static constexpr std::chrono::milliseconds kAtOnce{0};
  static Pause soon_if(bool is_wanted) noexcept { return is_wanted ? Pause(kSoon) : Pause(); }

  Timer(EventLoop& loop, std::function<Pause()> task);
  ~Timer() { loop_.remove(*this); }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  /// Costs one load if the task runs soon in any case. If the system has no more threads, this has no effect: ask
  /// again.
  void request() noexcept;

 private:
  friend class EventLoop;

  EventLoop& loop_;
  const std::function<Pause()> task_;
  std::atomic<bool> runs_soon_{false};
  EventLoop::Clock::time_point due_ = EventLoop::Clock::time_point::max();  ///< the loop's thread's own
};

}  // namespace onecopy
