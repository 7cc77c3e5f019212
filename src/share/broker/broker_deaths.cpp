// SPDX-License-Identifier: Apache-2.0
// The end of a borrower's claims once its connection is closed.
#include <fmt/format.h>

#include <algorithm>

#include "core/point.h"
#include "onecopy/core/error.h"
#include "os/log.h"
#include "os/process.h"
#include "share/broker/broker.h"

namespace onecopy {

/// The socket has closed: a sign to look, not yet a death.
void Broker::on_hangup(At at) {
  loop_.remove(at->socket.fd());
  {
    const LockGuard lock(mutex_);
    at->closed = true;
    at->socket = UnixSocket();  // it may live on: it must not wait for answers
  }
  if (!at->attached || !at->pidfd || has_exited(at->pidfd)) return bury(at);
  loop_.on_exit_of(at->pidfd, [this, at] { bury(at); });
  looks_.request();
}

/// Returns true while a look is needed to see whether any of them has ended.
bool Broker::look_after_closed() {
  std::vector<At> looked_after;
  {
    const LockGuard lock(mutex_);
    for (At at = connections_.begin(); at != connections_.end(); ++at)
      if (at->closed || !at->attached) looked_after.push_back(at);
  }
  const std::optional<bool> unseen = look_for_unseen();
  bool waiting = false;
  for (const At at : looked_after) {
    if (at->undelivered ? at->undelivered->are_delivered(deposits_) : !at->attached && is_over(*at))
      drop(at);
    else if (at->lost && at->lost->is_over(unseen)) leave_in_transit(at);
    else if (at->closed && !at->undelivered && !at->lost && is_over(*at)) bury(at);
    else waiting = waiting || is_looked_for(*at);
  }
  return waiting;
}

/// Does it take a look to see that it is over? Otherwise its pidfd reports the end, or nothing ever does.
bool Broker::is_looked_for(const Connection& c) const {
  if (c.lost) return c.lost->is_visible;
  return c.undelivered || !c.attached || !c.pidfd || !c.has_device_memory;
}

/// Counted from the first look: its words may have waited longer than that for a watch thread that is late.
bool Broker::is_silent(Connection& c) const {
  const auto now = Clock::now();
  if (!c.looked_at) c.looked_at = now;
  return now - *c.looked_at > std::chrono::milliseconds(stranger_silence_ms) && !c.socket.is_readable();
}

/// True for a stranger that has been silent too long, or a borrower that has ended. The mappings of a process take
/// long to read.
bool Broker::is_over(Connection& c) const {
  if (!c.attached) return is_silent(c);
  if (has_exited(c.pidfd)) return true;
  if (c.has_device_memory || !c.looks.is_due()) return false;
  c.looks.looked();
  point("broker.looked_at_maps");
  return !maps_file(c.credentials.pid, {"onecopy-claims", c.page_inode});
}

/// True if an unseen process may still use these claims: a child that never connected, or the borrower itself if we
/// hung up on it and cannot see whether it lives.
bool Broker::may_be_used_unseen(const Connection& c) const {
  return c.misheard && (!c.pidfd || ledger_.awaits_child(*c.attached));
}

/// Its page stays attached: an awaited child counts as holding everything.
void Broker::lose(At at) noexcept {
  log_warning(fmt::format(
      "what process {} had borrowed stays reserved while children of it may live that are not known here",
      at->credentials.pid));
  const LockGuard lock(mutex_);
  at->lost = Lost{at->credentials.pid != 0};
  untracked_.hurry();
  looks_.request();
}

/// Since when children of lost borrowers may have been missed; empty if no child can be looked for.
std::optional<Broker::Clock::time_point> Broker::first_misheard() const {
  std::optional<Clock::time_point> first;
  for (const Connection& c : connections_)
    if (c.lost && c.lost->is_visible) first = std::min(first.value_or(*c.misheard), *c.misheard);
  return first;
}

/// One look for all lost borrowers; empty if it is not time for one. A process that was connected before any child
/// could be missed is no such child. A younger one may be, and have inherited our table beside its own.
std::optional<bool> Broker::look_for_unseen() {
  const auto missed_since = first_misheard();
  if (!missed_since || !untracked_.is_due()) return {};
  BorrowerFiles files{{"onecopy-blocks", ledger_.table_inode()}, "onecopy-claims", {}, {}};
  for (const Connection& c : connections_)
    if (c.is_borrower()) files.pages.insert(c.page_inode);
  files.is_harmless = [&](int pid) {
    return std::any_of(connections_.begin(), connections_.end(), [&](const Connection& c) {
      return c.is_borrower() && c.credentials.pid == pid && c.since < *missed_since;
    });
  };
  return untracked_.look(files);
}

bool Broker::Lost::is_over(std::optional<bool> unseen) noexcept {
  if (!is_visible || !unseen) return false;
  times_gone = *unseen ? 0 : times_gone + 1;
  return times_gone >= 2;
}

/// The borrower is gone. The items that it had put into queues stay for the receivers.
void Broker::bury(At at) noexcept {
  if (at->pidfd) loop_.remove(at->pidfd.get());
  while (!at->joined.empty()) leave(*at, wire::JoinChannel(at->joined.back()));
  deposits_.leave(&*at);
  looks_.request();
  if (!at->attached) return drop(at);
  if (may_be_used_unseen(*at)) return lose(at);
  leave_in_transit(at);
}

void Broker::leave_in_transit(At at) noexcept {
  const Transits transits = transits_in(at->page);
  const std::size_t blocks = ledger_.leave_in_transit(*at->attached, transits);
  if (blocks == 0) return drop(at);
  const LockGuard lock(mutex_);
  at->undelivered.emplace(blocks, transits);
  at->lost.reset();
  at->pidfd.reset();
  looks_.request();
}

void Broker::drop(At at) noexcept {
  if (at->socket) loop_.remove(at->socket.fd());
  if (at->pidfd) loop_.remove(at->pidfd.get());
  {
    const LockGuard lock(mutex_);
    at->leaving = true;
  }
  if (at->attached) ledger_.detach(*at->attached);
  point("detach.done");
  const LockGuard lock(mutex_);
  connections_.erase(at);
}

std::vector<TransitInfo> Broker::undelivered() const {
  const LockGuard lock(mutex_);
  std::vector<TransitInfo> list;
  for (const Connection& c : connections_)
    if (c.undelivered)
      list.push_back({c.undelivered->blocks(), c.undelivered->age().count(),
                      fmt::format("queue, put by process {} before it ended", c.credentials.pid)});
  return list;
}

}  // namespace onecopy
