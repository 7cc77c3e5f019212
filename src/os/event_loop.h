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

#include "os/mutex.h"
#include "os/poller.h"

namespace onecopy {

class Timer;

/// A function that requests another run of a Timer, as Timer::request() does. The function may be empty, and takes no
/// lock.
using Wakeup = std::function<void()>;

/// The background thread of a process, which handles events of descriptors and runs Timers.
///
/// The thread starts with the first add(), the first request of a Timer, or start(). Handlers and Timers run on it one
/// at a time, without locks of the EventLoop; their exceptions are logged. Handlers and Timers must not wait for
/// another process. Thread safety: all members may be called concurrently, except stop() and start_again().
class EventLoop {
 public:
  using Clock = std::chrono::steady_clock;
  using Task = std::function<void()>;

  /// Constructs a loop. `thread_name` has at most 15 characters.
  explicit EventLoop(const char* thread_name = "onecopy-watch");
  ~EventLoop() { stop(); }

  /// Runs `handler` whenever `fd` is readable or hung up; with `edge`, once for each change. With `writable`, also runs
  /// it when there is room to send. A pidfd becomes readable when its process ends.
  void add(int fd, Task handler, bool edge = false, bool writable = false);
  /// Reports the present state of an edge-triggered `fd` again.
  void rearm(int fd);
  /// Unregisters `fd`. Its handler does not start again; it may still be running on the loop's thread.
  void remove(int fd) noexcept;

  /// Starts the thread before it is needed.
  void start();
  /// Keeps the thread polling for up to `max`, because an answer is expected. REQUIRES: called on the loop's thread.
  void stay_awake(std::chrono::microseconds max) noexcept;
  /// Ends stay_awake().
  void may_sleep() noexcept { awake_until_ = {}; }

  /// Ends the thread before a fork or at exit; registrations and requests stay. start_again() restarts the thread. If
  /// the system's limit of threads is reached then, the next request retries.
  void stop() noexcept;
  void start_again() noexcept;
  /// Abandons the loop in a forked child, where the parent's registrations mean nothing and its lock may be held.
  /// Afterwards requests, rearm() and remove() do nothing.
  void abandon() noexcept;
  /// Returns whether stop() is waiting for the thread. A handler then leaves events that will be reported again.
  bool is_stopping() const noexcept { return stopping_; }
  /// Returns whether the caller is the loop's thread, which all other threads wait for.
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

  // Functions that serve Timer.
  void add(Timer& timer);
  void remove(Timer& timer) noexcept;
  void request_pass() noexcept;
  void forget_requests() noexcept REQUIRES(mutex_);
  Clock::time_point next_pass() const noexcept;
  void pass() noexcept;
  void run(Timer& timer) noexcept REQUIRES(mutex_);

  const char* const thread_name_;
  std::optional<Poller> poller_;  ///< empty after abandon()
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
  // Times that the thread leaves to its successor, so that passes are on time even in a process that forks often.
  /// The earliest time of a timer that was not requested.
  Clock::time_point next_due_ = Clock::time_point::max();
  Clock::time_point rested_at_ =
      Clock::time_point::min();  ///< time of the last pass, or of events without one
  Clock::time_point awake_until_{};
  inline static thread_local const EventLoop* running_ = nullptr;  ///< the loop whose thread this is
};

/// A task that the thread of an EventLoop runs soon after a request, and again after the pause that the task returns.
/// Requests of all timers are served together, at most every 20 ms.
///
/// Thread safety: request() may be called concurrently. The destructor waits for a running task. REQUIRES: the
/// EventLoop outlives the timer, and the task does not destroy the timer.
class Timer {
 public:
  /// The time until the next run; empty means that the task waits for the next request.
  using Pause = std::optional<std::chrono::milliseconds>;
  static constexpr std::chrono::milliseconds kSoon{20};
  static constexpr std::chrono::milliseconds kAtOnce{0};
  static Pause soon_if(bool is_wanted) noexcept { return is_wanted ? Pause(kSoon) : Pause(); }

  Timer(EventLoop& loop, std::function<Pause()> task);
  ~Timer() { loop_.remove(*this); }

  /// Requests a run of the task. Costs one load if the task runs soon in any case. Does nothing if the system's limit
  /// of threads is reached: request again then.
  void request() noexcept;

 private:
  friend class EventLoop;

  EventLoop& loop_;
  const std::function<Pause()> task_;
  std::atomic<bool> runs_soon_{false};
  EventLoop::Clock::time_point due_ =
      EventLoop::Clock::time_point::max();  ///< used by the loop's thread only
};

}  // namespace onecopy
