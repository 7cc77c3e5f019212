// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "channel/queue/channel.h"
#include "os/event_loop.h"
#include "os/fork_hook.h"
#include "os/mutex.h"

namespace onecopy {

/// The channels that are open in this process. The registry is never destroyed, like Session. Thread safety: all
/// members may be called concurrently, but for the fork ones.
class ChannelRegistry {
 public:
  static ChannelRegistry& instance();

  /// Returns this process's channel for the queue of `fresh`, which is `fresh` itself if there was none. Counts one
  /// more Queue object.
  Channel& enter(std::unique_ptr<Channel> fresh, Deadline deadline = kForever);
  Channel& enter_again(Channel& channel);
  void leave(Channel& channel) noexcept;
  /// Returns the descriptor of Channel::ready_fd(). Throws out_of_descriptors, out_of_memory.
  int ready_fd(Channel& channel, Readiness::LookAround look_around);
  /// Makes a channel this process's own, at first use or after a fork.
  void join(Channel& channel, Session& session);
  /// Makes the watch thread look after all channels soon. Has no effect before the first join().
  static void poll_soon() noexcept {
    if (instance_ && instance_->looks_) instance_->looks_->request();
  }

 private:
  using Channels = std::map<std::uint64_t, std::unique_ptr<Channel>>;

  ChannelRegistry() = default;
  Timer::Pause poll() noexcept;
  bool give_up_backlogs() noexcept;
  bool take_unused(Channels& unused) noexcept REQUIRES(mutex_);
  void let_go_of_parents() noexcept;
  void at_exit() noexcept;
  // The analysis cannot follow locks from before_fork() to the functions after the fork.
  void before_fork() noexcept NO_THREAD_SAFETY_ANALYSIS;
  void after_fork() noexcept NO_THREAD_SAFETY_ANALYSIS;
  void after_fork_in_child() noexcept NO_THREAD_SAFETY_ANALYSIS;

  static const ForkHook kForkHook;
  inline static ChannelRegistry* instance_ = nullptr;

  Mutex mutex_;
  Channels channels_ GUARDED_BY(mutex_);
  Session* looked_after_by_ GUARDED_BY(mutex_) = nullptr;
  std::optional<Timer> looks_;  ///< made by the first join() of the process, before any request
};

}  // namespace onecopy
