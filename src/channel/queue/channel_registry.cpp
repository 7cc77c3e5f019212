// SPDX-License-Identifier: Apache-2.0
#include "channel/queue/channel_registry.h"

#include <cstdlib>

#include "channel/ring/role_lock.h"
#include "share/session.h"

namespace onecopy {

/// Locks the registry around a fork, so that a child never inherits a channel in the middle of a change.
const ForkHook ChannelRegistry::kForkHook{
    ForkRank::queues,
    {[] { instance().before_fork(); }, [] { instance().after_fork(); },
     [] { instance().after_fork_in_child(); }}};

ChannelRegistry& ChannelRegistry::instance() {
  static ChannelRegistry* const registry = instance_ = new ChannelRegistry();
  return *registry;
}

void ChannelRegistry::at_exit() noexcept {
  const LockGuard lock(mutex_);
  for (auto& [id, channel] : channels_)
    if (channel->readiness_) channel->readiness_->stop();
}

void ChannelRegistry::before_fork() noexcept {
  mutex_.lock();
  for (auto& [id, channel] : channels_) {
    if (channel->readiness_) {
      channel->readiness_->stop();
      channel->readiness_->lock();
    }
    channel->sender().lock();
    channel->receiver().unpacker().lock();
  }
}

void ChannelRegistry::after_fork() noexcept {
  for (auto& [id, channel] : channels_) {
    channel->receiver().unpacker().unlock();
    channel->sender().unlock();
    if (channel->readiness_) {
      channel->readiness_->unlock();
      channel->readiness_->start_again();
    }
  }
  mutex_.unlock();
}

void ChannelRegistry::after_fork_in_child() noexcept {
  for (auto& [id, channel] : channels_) {
    channel->hold_role_in_child();
    if (channel->readiness_) channel->readiness_->unlock();
    channel->forget_readiness();
  }
  after_fork();
  let_go_of_parents();
}

/// Forgets the parent's items in a forked child: the parent holds them itself, also in queues that it had left.
void ChannelRegistry::let_go_of_parents() noexcept {
  Channels unused;
  const LockGuard lock(mutex_);
  for (auto& [id, channel] : channels_) channel->sender().in_flight().clear();
  take_unused(unused);
}

Channel& ChannelRegistry::enter(std::unique_ptr<Channel> fresh, Deadline deadline) {
  Channel* channel;
  {
    const LockGuard lock(mutex_);
    auto& known = channels_[fresh->id_];
    if (!known) known = std::move(fresh);
    channel = known.get();
    if (channel->queues_ == 0) hold_role_again(channel->ring_.fd(), Role::user);
    ++channel->queues_;
  }
  try {
    channel->session(deadline);
  } catch (...) {
    leave(*channel);
    throw;
  }
  return *channel;
}

Channel& ChannelRegistry::enter_again(Channel& channel) {
  const LockGuard lock(mutex_);
  ++channel.queues_;
  return channel;
}

void ChannelRegistry::leave(Channel& channel) noexcept {
  Channels unused;
  const LockGuard lock(mutex_);
  if (--channel.queues_ != 0) return;
  release_role(channel.ring_.fd(), Role::user);
  release_role(channel.ring_.fd(), Role::producer);
  channel.is_producer_ = false;
  channel.forget_readiness();
  channel.sender_.in_flight().release_taken(channel.ring_.head());
  const bool expects_guests = take_unused(unused);
  if (expects_guests) poll_soon();
}

/// Stops the threads at exit, because no thread may outlive static objects.
int ChannelRegistry::ready_fd(Channel& channel, Readiness::LookAround look_around) {
  static const int at_exit_is_registered [[maybe_unused]] = std::atexit([] { instance().at_exit(); });
  const LockGuard lock(mutex_);
  if (!channel.readiness_) {
    channel.readiness_ = std::make_unique<Readiness>(channel.ring_, std::move(look_around));
    channel.ready_ = channel.readiness_.get();
  }
  return channel.readiness_->fd();
}

/// Moves unneeded channels to `unused`; the caller destroys them once it has no lock. Returns true while a channel is
/// needed only by a process that may still join, within a limited time.
bool ChannelRegistry::take_unused(Channels& unused) noexcept {
  const Session* const here = Session::existing();
  bool expects_guests = false;
  for (auto at = channels_.begin(); at != channels_.end();) {
    const auto next = std::next(at);
    Channel& channel = *at->second;
    const bool is_ours = channel.session_ == here;
    const bool is_needed = channel.queues_ != 0 || (is_ours && channel.is_needed());
    expects_guests = expects_guests || (is_ours && channel.queues_ == 0 && channel.is_invited());
    if (!is_needed) {
      channel.close();
      unused.insert(channels_.extract(at));
    }
    at = next;
  }
  return expects_guests;
}

void ChannelRegistry::join(Channel& channel, Session& session) {
  Channels unused;  // the parent's channels
  {
    const LockGuard lock(mutex_);
    if (channel.session_ != &session) {
      channel.settle_in(session);
      take_unused(unused);
    }
    if (looked_after_by_ != &session) {
      looks_.emplace(session.loop(), [this] { return poll(); });
      session.queues().on_shortage = []() noexcept { return instance().give_up_backlogs(); };
    }
    looked_after_by_ = &session;
  }
  channel.announce(session);
}

/// Does not wait for the lock, because an allocation may be made under another lock of onecopy's.
bool ChannelRegistry::give_up_backlogs() noexcept {
  Channels unused;
  if (!mutex_.try_lock()) return false;
  const LockGuard lock(mutex_, std::adopt_lock);
  for (auto& [id, channel] : channels_)
    if (channel->session_ == Session::existing()) channel->give_up();
  take_unused(unused);
  return !unused.empty();
}

/// Does not wait for the lock, because a thread that is about to fork holds it while it stops the watch thread.
Timer::Pause ChannelRegistry::poll() noexcept {
  constexpr std::chrono::milliseconds kUntilGuestsCome{160};
  Channels unused;
  if (!mutex_.try_lock()) return Timer::kSoon;
  const LockGuard lock(mutex_, std::adopt_lock);
  bool more = false;
  for (auto& [id, channel] : channels_) more = channel->poll() || more;
  const bool expects_guests = take_unused(unused);
  if (more) return Timer::kSoon;
  return expects_guests ? Timer::Pause(kUntilGuestsCome) : Timer::Pause();
}

}  // namespace onecopy
