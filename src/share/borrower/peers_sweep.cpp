// SPDX-License-Identifier: Apache-2.0
// What a sweep ends: connections to owners that are gone or were left, once no block of them is held.
#include <algorithm>
#include <new>
#include <string>

#include "share/borrower/peer.h"
#include "share/format/process_name.h"

namespace onecopy {

bool Peers::sweep() noexcept {
  const LockGuard lock(mutex_);
  bool waiting = false;
  for (auto at = open_.begin(); at != open_.end();) {
    const auto ended = at++;
    Peer& peer = **ended;
    if (!peer.is_gone()) {
      if (!try_leave(*ended)) continue;
      const bool is_left = peer.try_finish_leaving();
      waiting = waiting || !is_left;
      if (is_left) closed_.splice(closed_.end(), open_, ended);
      continue;
    }
    const bool is_given_back = peer.try_close();
    const bool is_released = !peer.is_closed() || try_release_closed(peer.process().name());
    waiting = waiting || !is_released || (!is_given_back && peer.blocks().leases().are_waiting());
    if (!peer.is_closed()) continue;
    const auto known = by_process_.find(peer.process().id());
    if (known == by_process_.end() || known->second != *ended) peer.forget_process();
    if (is_given_back && is_released) closed_.splice(closed_.end(), open_, ended);
  }
  forget_ended();
  destroy_forgotten();
  return waiting;
}

void Peers::leave(const ProcessId& process) {
  const PeerRef peer = find_open(process);
  if (!peer) return;
  has_left_ = true;
  peer->leave_when_unused();
  looks_.request();
}

/// Leaves the owner if it can be left. Returns whether it was left, now or by an earlier sweep.
bool Peers::try_leave(const PeerRef& peer) noexcept {
  if (!loop_.runs_here()) return false;
  if (peer->is_closed()) return true;
  if (retention_.relies_on(peer->process().id()) || !peer->try_leave()) return false;
  const ProcessId& id = peer->process().id();
  Peer* known = peer.get();
  known_of(id).compare_exchange_strong(known, nullptr);
  if (const auto at = by_process_.find(id); at != by_process_.end() && at->second == peer)
    by_process_.erase(at);
  return true;
}

/// Forgets processes that have ended. Keeps a process that runs another program now, for which a device may still be at
/// work, see timeline_of().
void Peers::forget_ended() noexcept {
  std::erase_if(by_process_, [this](const auto& e) {
    Peer* peer = e.second.get();
    if (!peer->is_closed() || !peer->process().has_ended()) return false;
    known_of(e.first).compare_exchange_strong(peer, nullptr);
    e.second->forget_process();
    return true;
  });
}

/// Destroys peers that no caller remembers. Does so only on the watch thread, because on other threads a handler of the
/// peer may be running. A peer that is forgotten later is destroyed by the sweep after the next end of an owner.
void Peers::destroy_forgotten() noexcept {
  if (!loop_.runs_here()) return;
  std::erase_if(closed_,
                [](const PeerRef& peer) { return peer.use_count() == 1 && peer->is_destroyable(); });
}

/// Ends what other processes retain of an owner for this process, unless this process still holds some of the owner's
/// blocks in another way. Returns false if memory is short.
bool Peers::try_release_closed(const std::string& owner) noexcept {
  const auto is_open = [&](const auto& p) { return p->process().name() == owner && !p->is_closed(); };
  const auto is_its = [&](const Ledger* ledger) { return public_name(ledger->owner()) == owner; };
  try {
    if (std::none_of(open_.begin(), open_.end(), is_open) &&
        std::none_of(inherited_.begin(), inherited_.end(), is_its))
      retention_.release_all_of(owner);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace onecopy
