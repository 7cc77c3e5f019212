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

/// The lanes of this process, at which a waiting thread looks.
struct Lanes {
  /// Looks at the lanes so many times, or until the call, if there is one, is done. Returns whether there is something in a lane. Any thread
  /// may ask.
  std::function<bool(int looks, const Call* mine)> watch;
  /// Handles the messages there, unless another thread does. `mine` is the call that the thread waits for.
  std::function<void(const Call* mine)> look;
};

/// Threads that wait for calls. One of them, the leader, looks at the lanes and completes any call; the others sleep on
/// their call's word. A leader whose call is done makes a follower the leader, or leaves the lanes to the workers. So a
/// thread that waits alone takes its answer itself, and no other thread runs for it.
///
/// Thread safety: all members may be called concurrently.
/// Invariants: while a thread waits, a leader listens to the answers' bell, or is about to. Where none does, the bell
/// says awake only while no call under way is wanted. No lock is held while waiting. A sleep lasts a slice at most.
class CompletionWaiter {
 public:
  /// `on_unwaited` is called for a call that no thread waits for and a worker has to settle.
  CompletionWaiter(Doorbell& own, Lanes lanes, std::function<void(CallRef)> on_unwaited);

  /// Queues the call's end for a worker unless a thread waits for the call when it ends. Returns false when it has ended.
  bool want(Call& call) noexcept;
  /// Returns true when the call is done; false at `until`, and after a slice: look at what else there is then.
  bool wait(const CallRef& call, Deadline until);
  /// Ends the call, unless it has ended. Returns whether this did it. `mine`: the call that this thread waits for.
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
  std::atomic<int> wanted_{0};  ///< calls under way that a worker may have to settle
  Mutex followers_mutex_;
  std::list<Call*> followers_ GUARDED_BY(followers_mutex_);
  std::atomic<std::size_t> follower_count_{0};
};

}  // namespace onecopy::rpc
