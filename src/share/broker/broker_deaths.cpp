// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <optional>
#include <type_traits>
#include <utility>

#include "core/point.h"
#include "os/log.h"
#include "os/process.h"
#include "share/broker/broker.h"
#include "share/broker/connection_stage.h"
#include "share/owner/holds.h"

// The functions that end a borrower's claims after its connection has closed.
namespace onecopy {

void Broker::on_hangup(At at) {
  loop_.remove(at->socket.fd());
  {
    const LockGuard lock(mutex_);
    if (at->attached) at->stage = HungUp{};
    at->socket = UnixSocket();  // closed, because the process may live on and must not wait for answers
  }
  if (!at->attached || at->has_detached || Borrower::hang_up(sight_of(*at)) == Step::end) return bury(at);
  at->process.start(loop_, [this, at] { bury(at); });
  polling_.request();
}

/// Looks at all borrowers without a connection. Returns true while more looks are needed to learn whether one of them
/// has ended.
bool Broker::poll_closed() {
  std::vector<At> looked_after;
  {
    const LockGuard lock(mutex_);
    for (At at = connections_.begin(); at != connections_.end(); ++at)
      if (!at->is_open()) looked_after.push_back(at);
  }
  const std::optional<bool> unseen = look_for_unseen();
  bool again = false;
  for (const At at : looked_after) switch (look_at(*at, unseen)) {
      case Step::wait: break;
      case Step::look_again: again = true; break;
      case Step::end: bury(at); break;
      case Step::release: leave_in_transit(at); break;
      case Step::drop: drop(at); break;
    }
  return again;
}

Sight Broker::sight_of(const Connection& c) const {
  Sight sight;
  sight.now = Clock::now();
  sight.has_spoken = c.socket && c.socket.is_readable();
  sight.has_pidfd = static_cast<bool>(c.process);
  sight.has_exited = c.process && c.process.has_ended();
  sight.has_device_memory = c.has_device_memory;
  sight.maps_page = [&c] {
    point("broker.looked_at_maps");
    return maps_file(c.credentials.pid, {"onecopy-claims", c.page_inode});
  };
  return sight;
}

Step Broker::look_at(Connection& c, std::optional<bool> may_have_children) {
  Sight sight = sight_of(c);
  sight.may_have_children = may_have_children;
  if (auto* stranger = std::get_if<Stranger>(&c.stage))
    return stranger->poll(sight, std::chrono::milliseconds(stranger_silence_ms));
  if (auto* hung_up = std::get_if<HungUp>(&c.stage)) return hung_up->poll(sight);
  if (auto* parent = std::get_if<MaybeForked>(&c.stage)) return parent->poll(sight);
  return std::get<UndeliveredItems>(c.stage).are_delivered(retention_.queues) ? Step::drop
                                                                              : Step::look_again;
}

/// Returns whether an unseen process may still use the connection's claims: a child that never connected, or the
/// borrower itself if we hung up on it and cannot see whether it lives.
bool Broker::may_be_used_unseen(const Connection& c) const {
  return c.suspect_since && (!c.process || ledger_.borrowers().awaits_child(*c.attached));
}

void Broker::lose(At at) {
  log_warning(
      "what process {} had borrowed stays reserved while children of it may live that are not known here",
      at->credentials.pid);
  const LockGuard lock(mutex_);
  at->stage = MaybeForked{at->credentials.pid != 0};
  untracked_.hurry();
  polling_.request();
}

/// Returns the time since which children of lost borrowers may have been missed; nothing if no child can be looked for.
std::optional<Broker::Clock::time_point> Broker::first_suspect_since() const {
  std::optional<Clock::time_point> first;
  for (const Connection& c : connections_)
    if (const auto* parent = std::get_if<MaybeForked>(&c.stage); parent && parent->is_visible)
      first = std::min(first.value_or(*c.suspect_since), *c.suspect_since);
  return first;
}

/// Looks once for unseen children of all lost borrowers. Returns nothing if it is too early for a look. A process that
/// was connected before a child could be missed is not a missed child; a younger one may be, and may have inherited our
/// table beside its own.
std::optional<bool> Broker::look_for_unseen() {
  const auto missed_since = first_suspect_since();
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

/// Ends the claims of a borrower that is gone, except on blocks of items in queues, which stay for their receivers.
/// Without memory for malloc, the claims stay as they are until the next look, which tries again.
void Broker::bury(At at) noexcept {
  polling_.request();
  point("broker.burial");
  try {
    at->process.stop();
    while (!at->joined.empty()) leave(*at, at->joined.back());
    retention_.segments.release_all_by(&*at);
    if (!at->attached) return drop(at);
    if (may_be_used_unseen(*at)) return lose(at);
  } catch (const std::bad_alloc&) {
    return point("broker.burial.put_off");
  }
  leave_in_transit(at);
}

/// Allocates before the claims change, so that a failure leaves them to the next look.
void Broker::leave_in_transit(At at) noexcept {
  polling_.request();
  const TransitCounts transits = transits_in(at->page);
  std::optional<UndeliveredItems> items;
  try {
    items.emplace(transits);
  } catch (const std::bad_alloc&) {
    return point("broker.burial.put_off");
  }
  const std::size_t blocks = ledger_.borrowers().leave_in_transit(*at->attached, transits);
  if (blocks == 0) return drop(at);
  items->set_blocks(blocks);
  const LockGuard lock(mutex_);
  static_assert(std::is_nothrow_move_constructible_v<UndeliveredItems>);
  at->stage.emplace<UndeliveredItems>(*std::move(items));
  at->process = {};
}

void Broker::drop(At at) noexcept {
  if (at->socket) loop_.remove(at->socket.fd());
  {
    const LockGuard lock(mutex_);
    at->leaving = true;
  }
  if (at->attached) ledger_.borrowers().detach(*at->attached);
  point("detach.done");
  const LockGuard lock(mutex_);
  connections_.erase(at);
}

std::vector<TransitInfo> Broker::undelivered() const {
  const LockGuard lock(mutex_);
  std::vector<TransitInfo> list;
  for (const Connection& c : connections_)
    if (const auto* items = std::get_if<UndeliveredItems>(&c.stage))
      list.push_back({items->blocks(), items->age().count(),
                      fmt::format("queue, put by process {} before it ended", c.credentials.pid)});
  return list;
}

Step Stranger::poll(const Sight& sight, std::chrono::milliseconds silence) {
  if (!heard_since) heard_since = sight.now;
  return sight.now - *heard_since > silence && !sight.has_spoken ? Step::drop : Step::look_again;
}

Step Borrower::hang_up(const Sight& sight) {
  return !sight.has_pidfd || sight.has_exited ? Step::end : Step::look_again;
}

/// A process that has exec'ed another program counts as ended, because it no longer maps its page, unless a device may
/// still be at work for it.
Step HungUp::poll(const Sight& sight) {
  if (sight.has_exited) return Step::end;
  if (sight.has_device_memory) return Step::wait;
  if (!looks.is_due()) return Step::look_again;
  looks.looked();
  return sight.maps_page() ? Step::look_again : Step::end;
}

Step MaybeForked::poll(const Sight& sight) {
  if (!is_visible) return Step::wait;
  if (!sight.may_have_children) return Step::look_again;
  times_gone = *sight.may_have_children ? 0 : times_gone + 1;
  return times_gone >= 2 ? Step::release : Step::look_again;
}

UndeliveredItems::UndeliveredItems(const TransitCounts& transits) {
  const auto channels = transits.channels();
  if (!channels) return;
  knows_queues_ = true;
  for (const std::uint64_t channel : *channels) waiting_for_[channel];
}

bool UndeliveredItems::are_delivered(const LocalQueues& queues) {
  const auto now = Clock::now();
  if (now - since_ > Holds::kLifetime) return true;
  if (!knows_queues_) return false;
  const auto all = [](QueueMark& mark) { return &mark; };
  if (queues.drop_passed(waiting_for_, /*closed_is_passed=*/false, all)) return false;
  if (!taken_) taken_ = now;
  return now - *taken_ > std::chrono::milliseconds(after_transit_ms);
}

}  // namespace onecopy
