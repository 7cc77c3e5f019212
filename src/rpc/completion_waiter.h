// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>

#include "channel/ring/doorbell.h"
#include "os/mutex.h"
#include "rpc/call.h"

namespace onecopy::rpc {

/// The two functions by which a waiting thread reads the lanes of this process.
struct Lanes {
  /// Looks at the lanes `looks` times, or until the call `mine` is done. Returns whether a lane contains a message. Any
  /// thread may call it.
  std::function<bool(int looks, const Call* mine)> watch;
  /// Handles the messages in the lanes, unless another thread does. `mine` is the call that the thread waits for.
  std::function<void(const Call* mine)> poll;
};

/// The threads that wait for calls. One of them, the leader, looks at the lanes and completes any call; the others
/// sleep on their call's word. A leader whose call is done makes a follower the leader, or leaves the lanes to the
/// workers. So a thread that waits alone takes its answer itself, without the help of another thread.
///
/// Thread safety: all members may be called concurrently. Invariants: while a thread waits, a leader listens to the
/// answers' bell, or is about to. Without a leader, the bell may stay awake only if no call under way is wanted. No
/// lock is held while waiting. A sleep lasts at most a slice.
class CompletionWaiter {
 public:
  /// Makes a waiter. `on_unwaited` gets each call that ends while no thread waits for it, if want() was called.
  CompletionWaiter(Doorbell& own, Lanes lanes, std::function<void(CallRef)> on_unwaited);

  /// Makes `on_unwaited` get the call when it ends, unless a thread waits for it then. Returns false if the call has
  /// already ended.
  bool want(Call& call) noexcept;
  /// Waits for the call. Returns true when it is done, and false at `until` or after a slice, so that the caller can
  /// check for other events.
  bool wait(const CallRef& call, Deadline until);
  /// Completes the call. Returns false if the call had already ended. `mine`: the call that this thread waits for.
  bool complete(const CallRef& call, End end, Status status = Status::value, Message&& answer = {},
                const Call* mine = nullptr);

  /// Sets how long a leader looks at the lanes before it sleeps.
  void set_spin(std::chrono::nanoseconds spin) noexcept { spin_ns_ = spin.count(); }
  bool has_leader() const noexcept { return is_led_.load(std::memory_order_relaxed); }

 private:
  class Follower;

  bool try_lead() noexcept { return !is_led_.exchange(true); }
  void wait_in_turn(Call& call, Deadline until);
  void lead(Call& call, Deadline until);
  bool watch(Call& call, Deadline until);
  void sleep(const Call& call, Deadline until);
  void look_after_leading(const Call& call);
  void stop_leading() noexcept;
  void end_watch() noexcept;
  /// Returns whether this thread leads now.
  bool follow(Call& call, Deadline until);
  void choose_leader() noexcept;
  void stop_waiting(const CallRef& call);

  Doorbell& bell_;
  const Lanes lanes_;
  const std::function<void(CallRef)> on_unwaited_;
  std::atomic<std::int64_t> spin_ns_{100'000};
  std::atomic<bool> is_led_{false};
  std::atomic<int> wanted_{0};  ///< calls under way for which want() was called
  Mutex followers_mutex_;
  std::list<Call*> followers_ GUARDED_BY(followers_mutex_);
  std::atomic<std::size_t> follower_count_{0};
};

}  // namespace onecopy::rpc
