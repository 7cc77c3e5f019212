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

/// The one background thread of a process. It answers the broker's connections, notices deaths, and ticks every 20 ms
/// while a Tick has something to wait for. If that may come later, each pause is twice as long as the one before, up
/// to 160 ms, until a caller requests a tick.
///
/// It starts with the first add(), request_tick() or start(). Handlers run on it, one at a time, without locks of the
/// Watch; their exceptions are logged. It never waits for another process. Thread safety: all members may be called
/// concurrently, but for stop() and start_again().
class Watch {
 public:
  using Handler = std::function<void()>;
  enum class Again : std::uint8_t { no, later, soon };
  /// Returns when it must be called again.
  using Tick = std::function<Again()>;

  Watch();
  ~Watch();

  /// Runs `handler` whenever `fd` is readable or hung up; with `edge`, once a change.
  void add(int fd, Handler handler, bool edge = false);
  /// Reports the present state of an edge-triggered `fd` again.
  void rearm(int fd);
  /// No handler of `fd` starts after this. One may be running, on the watch thread, unless the caller is that thread.
  void remove(int fd) noexcept;

  /// For good.
  void add_tick(Tick tick);
  /// Starts ticking; stops when every Tick has returned `no`. The next tick comes after the shortest pause. Costs one
  /// load if it was requested already.
  void request_tick() noexcept;
  /// In a Tick: the next one comes at once, or as soon as other pending work is done.
  void hurry() noexcept { hurried_ = true; }

  /// Starts the thread before it is needed.
  void start();
  /// On the watch thread: it stays awake that long, because an answer is about to come.
  void stay_awake(std::chrono::microseconds most) noexcept;
  /// Ends stay_awake(): no answer is about to come.
  void may_sleep() noexcept;

  /// Ends the thread before a fork (or at exit); registrations stay. start_again() resumes. If the system has no more
  /// threads then, the next request does.
  void stop() noexcept;
  void start_again() noexcept;
  /// In a forked child, where the parent's registrations mean nothing, and its lock may be held. From here on nothing
  /// is watched: request_tick(), rearm() and remove() do nothing.
  void abandon() noexcept;
  /// Does stop() wait for the thread? Then a handler leaves events that are reported again.
  bool is_stopping() const noexcept { return stopping_; }
  /// Is the caller its thread, which all others wait for?
  bool runs_here() const noexcept { return running_ == this; }

 private:
  static constexpr std::chrono::milliseconds kTickTime{20};
  static constexpr std::chrono::milliseconds kLongestPause{160};

  struct Entry {
    int fd;
    bool edge;
    std::shared_ptr<Handler> handler;  // the registry and, while it runs, the thread
  };

  void ensure_thread() REQUIRES(mutex_);
  bool try_thread() noexcept REQUIRES(mutex_);
  void run() noexcept;
  void wait_and_handle();
  void handle(std::uint64_t token) noexcept;
  bool is_ticking() const noexcept { return ticking_ || pause_.count() != 0; }
  std::chrono::milliseconds pause() const noexcept { return ticking_ ? kTickTime : pause_; }
  void tick() noexcept;
  Again call_ticks();

  std::optional<Poller> poller_;  ///< none after abandon()
  std::optional<Event> wake_;
  Mutex mutex_;
  std::map<std::uint64_t, Entry> entries_ GUARDED_BY(mutex_);
  std::map<int, std::uint64_t> token_of_ GUARDED_BY(mutex_);
  std::vector<Tick> ticks_ GUARDED_BY(mutex_);
  std::uint64_t last_token_ GUARDED_BY(mutex_) = 0;
  std::atomic<bool> ticking_{false};    ///< the next is asked for, or wanted soon
  std::chrono::milliseconds pause_{0};  ///< else before the next; 0: none is wanted. The thread's own
  /// Or the beginning, if there was none. The thread's own, and the next one's: a process that forks often ticks as
  /// well.
  std::chrono::steady_clock::time_point last_tick_ = std::chrono::steady_clock::time_point::min();
  std::atomic<bool> stopping_{false};
  bool hurried_ = false;                                 ///< the thread's own
  std::chrono::steady_clock::time_point awake_until_{};  ///< the thread's own
  bool wanted_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
  inline static thread_local const Watch* running_ = nullptr;  ///< whose thread this is
};

}  // namespace onecopy
